/* Domains, and what belongs to them: address vectors and memory regions. The session with the service belongs to the process.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "provider.h"

#define SOCKET "/run/memferry.sock"
/* So many rounds of progress until sockets are looked at. */
#define THOROUGH_ROUNDS 64
#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

struct process process = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .transfers = {&process.transfers, &process.transfers},
    .waiting = {&process.waiting, &process.waiting},
    .all_domains = {&process.all_domains, &process.all_domains},
};

/* ---- The session ---- */

static int refused(const char *what) {
    WARN("%s: %s\n", what, mf_last_message());
    return -FI_ENODEV;
}

static int open_queue(void) {
    void *bytes;

    if (mf_session(process.client, &process.session) != MF_ERROR_NONE)
        return refused("no session");
    if (mf_queue_open(process.client, QUEUE_TRANSFERS, &process.queue) != MF_ERROR_NONE)
        return refused("no queue");
    if (mf_frame_allocate(process.client, BOUNCE_SLOTS * BOUNCE_BYTES, &process.bounce) != MF_ERROR_NONE ||
        mf_frame_map(process.bounce, &bytes, NULL) != MF_ERROR_NONE) {
        (void)mf_queue_close(process.queue);
        return refused("no frame for staging");
    }
    process.bounce_bytes = bytes;
    process.free_slots = UINT32_MAX;
    return 0;
}

static int open_session(void) {
    char *socket = NULL;
    int status;

    (void)fi_param_get_str(&memferry_provider, "socket", &socket);
    if (mf_check_version(MF_VERSION) != MF_ERROR_NONE)
        return refused("libmemferry");
    if (mf_connect(socket ? socket : SOCKET, &process.client) != MF_ERROR_NONE)
        return refused(socket ? socket : SOCKET);
    status = open_queue();
    if (status < 0)
        (void)mf_disconnect(process.client);
    return status;
}

/* A fork while another thread has the lock would leave the child lists of any shape. It waits only a little: that thread may itself be
 * the one that forks, in a handler of a signal. */
#define FORK_MS 1000
static __thread bool has_fork_lock;

static void before_fork(void) {
    struct timespec limit;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += FORK_MS / 1000;
    has_fork_lock = pthread_mutex_timedlock(&process.lock, &limit) == 0;
}

static void after_fork(void) {
    if (has_fork_lock)
        pthread_mutex_unlock(&process.lock);
}

static void in_child(void) {
    pthread_mutex_init(&process.lock, NULL);
    closer_in_child(has_fork_lock);
    if (process.domains > 0) {
        process.is_torn = process.is_torn || !has_fork_lock;
        process.is_child = true;
    }
}

static void watch_forks(void) {
    static bool is_watching;

    if (!is_watching)
        is_watching = pthread_atfork(before_fork, after_fork, in_child) == 0;
}

/* A child that has closed the domains of its parent may open its own. */
static void abandon_session(void) {
    memory_abandon();
    link_init(&process.transfers);
    link_init(&process.waiting);
    process.transfer_count = 0;
    process.is_child = false;
}

static void close_session(void) {
    if (process.is_child) {
        if (!process.is_torn)
            abandon_session();
        return;
    }
    (void)mf_queue_close(process.queue);
    memory_close();
    (void)mf_frame_free(process.bounce);
    (void)mf_disconnect(process.client);
}

/* ---- Address vectors ---- */

const struct av_entry *av_entry(const struct av *av, fi_addr_t address) {
    return address < av->count && av->entries[address].is_used ? &av->entries[address] : NULL;
}

static int av_add(struct av *av, const struct name *name, uid_t user, fi_addr_t *address) {
    size_t at = 0;

    while (at < av->count && av->entries[at].is_used)
        at++;
    if (at == av->capacity) {
        size_t capacity = av->capacity ? 2 * av->capacity : 64;
        struct av_entry *larger = realloc(av->entries, capacity * sizeof(*larger));

        if (!larger)
            return -FI_ENOMEM;
        av->entries = larger;
        av->capacity = capacity;
    }
    av->entries[at] = (struct av_entry){*name, user, true};
    if (at == av->count)
        av->count++;
    av->generation++;
    *address = at;
    return 0;
}

/* Addresses are strings, one after the other. */
static int av_insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *found, uint64_t flags, void *context) {
    struct av *av = CONTAINER(fid, struct av, fid);
    const char *text = addresses;
    int inserted = 0;

    if (flags & ~(FI_MORE | FI_SYNC_ERR) || (flags & FI_SYNC_ERR && !context))
        return -FI_EINVAL;
    pthread_mutex_lock(&process.lock);
    for (size_t i = 0; i < count; i++) {
        size_t length = text ? strnlen(text, NAME_BYTES) : NAME_BYTES;
        fi_addr_t address = FI_ADDR_NOTAVAIL;
        struct name name;
        uid_t user;
        int status = -FI_EINVAL;

        if (length < NAME_BYTES && wire_name_parse(text, &name, &user))
            status = av_add(av, &name, user, &address);
        /* After what is no string, nothing tells where the next address begins. */
        text = length < NAME_BYTES ? text + length + 1 : NULL;
        if (found)
            found[i] = status == 0 ? address : FI_ADDR_NOTAVAIL;
        if (flags & FI_SYNC_ERR)
            ((int *)context)[i] = -status;
        inserted += status == 0;
    }
    pthread_mutex_unlock(&process.lock);
    return inserted;
}

static int av_insertsvc(struct fid_av *fid, const char *node, const char *service, fi_addr_t *found, uint64_t flags, void *context) {
    return node && !service ? av_insert(fid, node, 1, found, flags, context) : -FI_EINVAL;
}

static int no_insertsym(struct fid_av *fid, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *found,
                        uint64_t flags, void *context) {
    (void)fid;
    (void)node;
    (void)nodes;
    (void)service;
    (void)services;
    (void)found;
    (void)flags;
    (void)context;
    return -FI_ENOSYS;
}

/* Connections to removed addresses stay; endpoints do not find them by these any more. */
static void forget_outgoing(struct av *av, fi_addr_t address) {
    FOR_EACH(item, following, &av->domain->endpoints) {
        struct endpoint *ep = CONTAINER(item, struct endpoint, link);

        if (ep->av == av && address < ep->outgoing_count)
            ep->outgoing[address] = NULL;
    }
}

static int av_remove(struct fid_av *fid, fi_addr_t *addresses, size_t count, uint64_t flags) {
    struct av *av = CONTAINER(fid, struct av, fid);
    int status = flags ? -FI_EINVAL : 0;

    pthread_mutex_lock(&process.lock);
    for (size_t i = 0; i < count && status == 0; i++) {
        if (!av_entry(av, addresses[i])) {
            status = -FI_EINVAL;
            break;
        }
        av->entries[addresses[i]].is_used = false;
        forget_outgoing(av, addresses[i]);
        av->generation++;
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

static int av_lookup(struct fid_av *fid, fi_addr_t address, void *to, size_t *length) {
    struct av *av = CONTAINER(fid, struct av, fid);
    const struct av_entry *entry;
    int status = -FI_EINVAL;

    pthread_mutex_lock(&process.lock);
    entry = av_entry(av, address);
    if (entry) {
        size_t bytes = strlen(entry->name.text) + 1;

        memcpy(to, entry->name.text, *length < bytes ? *length : bytes);
        *length = bytes;
        status = 0;
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

static const char *av_straddr(struct fid_av *fid, const void *address, char *buffer, size_t *length) {
    int bytes;

    (void)fid;
    bytes = snprintf(buffer, *length, "%.*s", NAME_BYTES, (const char *)address);
    *length = (size_t)(bytes < 0 ? 0 : bytes) + 1;
    return buffer;
}

static struct fi_ops_av av_ops = {
    .size = sizeof(struct fi_ops_av),
    .insert = av_insert,
    .insertsvc = av_insertsvc,
    .insertsym = no_insertsym,
    .remove = av_remove,
    .lookup = av_lookup,
    .straddr = av_straddr,
};

static int av_close(struct fid *fid) {
    struct av *av = CONTAINER(fid, struct av, fid.fid);
    int status = -FI_EBUSY;

    pthread_mutex_lock(&process.lock);
    if (av->references == 0) {
        av->domain->references--;
        status = 0;
    }
    pthread_mutex_unlock(&process.lock);
    if (status == 0) {
        free(av->entries);
        free(av);
    }
    return status;
}

static struct fi_ops av_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = av_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int av_open(struct fid_domain *domain_fid, struct fi_av_attr *attr, struct fid_av **fid, void *context) {
    struct domain *domain = CONTAINER(domain_fid, struct domain, fid);
    struct av *av;

    /* Insertions are done when they return; vectors are not shared between processes, nor between contexts. */
    if (attr && (attr->flags || attr->name || attr->rx_ctx_bits))
        return -FI_ENOSYS;
    av = calloc(1, sizeof(*av));
    if (!av)
        return -FI_ENOMEM;
    if (attr && attr->type == FI_AV_UNSPEC)
        attr->type = FI_AV_TABLE;
    av->domain = domain;
    av->generation = 1;
    av->fid = (struct fid_av){{FI_CLASS_AV, context, &av_fid_ops}, &av_ops};
    pthread_mutex_lock(&process.lock);
    domain->references++;
    pthread_mutex_unlock(&process.lock);
    *fid = &av->fid;
    return 0;
}

/* ---- Memory regions ---- */

struct region_handle *region_of_key(struct domain *domain, uint64_t key) {
    FOR_EACH(item, following, &domain->regions) {
        struct region_handle *region = CONTAINER(item, struct region_handle, link);

        if (region->fid.key == key)
            return region;
    }
    return NULL;
}

struct region_handle *region_find(struct domain *domain, uint64_t key, uint64_t address, uint64_t length, uint64_t access,
                                  uint8_t **start) {
    struct region_handle *region = region_of_key(domain, key);
    uint64_t base;

    if (!region || (region->access & access) != access)
        return NULL;
    base = domain->has_virtual_addresses ? (uintptr_t)region->start : 0;
    if (address < base || address - base > region->length || length > region->length - (address - base))
        return NULL;
    *start = region->start + (address - base);
    return region;
}

static int region_close(struct fid *fid) {
    struct region_handle *region = CONTAINER(fid, struct region_handle, fid.fid);

    pthread_mutex_lock(&process.lock);
    /* In a forked child, grants and frames are the parent's. */
    if (!process.is_torn)
        link_remove(&region->link);
    if (!process.is_child) {
        rma_region_closed(region);
        memory_release(region->hold);
    }
    region->domain->references--;
    pthread_mutex_unlock(&process.lock);
    free(region);
    return 0;
}

/* Regions work from the start. */
static int region_control(struct fid *fid, int command, void *argument) {
    (void)fid;
    (void)argument;
    return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static struct fi_ops region_ops = {
    .size = sizeof(struct fi_ops),
    .close = region_close,
    .bind = no_bind,
    .control = region_control,
    .ops_open = no_ops_open,
};

/* A key that nobody guesses: it is all that a peer needs. */
static int choose_key(struct domain *domain, uint64_t wanted, uint64_t *key) {
    *key = wanted;
    if (!domain->has_provider_keys)
        return region_of_key(domain, wanted) ? -FI_ENOKEY : 0;
    do {
        if (getrandom(key, sizeof(*key), 0) != sizeof(*key))
            return -FI_EOTHER;
    } while (*key == FI_KEY_NOTAVAIL || region_of_key(domain, *key));
    return 0;
}

static int region_open(struct domain *domain, const struct iovec *memory, uint64_t access, uint64_t wanted, void *context,
                       struct fid_mr **fid) {
    struct region_handle *region;
    uint64_t key;
    int status;

    if (access & ~ACCESS || (uintptr_t)memory->iov_base + memory->iov_len < (uintptr_t)memory->iov_base)
        return -FI_EINVAL;
    region = calloc(1, sizeof(*region));
    if (!region)
        return -FI_ENOMEM;
    pthread_mutex_lock(&process.lock);
    status = process.is_child ? -FI_EOPBADSTATE : choose_key(domain, wanted, &key);
    if (status == 0) {
        region->fid = (struct fid_mr){{FI_CLASS_MR, context, &region_ops}, region, key};
        region->domain = domain;
        region->start = memory->iov_base;
        region->length = memory->iov_len;
        region->access = access;
        link_init(&region->grants);
        region->hold = memory_hold(memory->iov_base, memory->iov_len);
        link_append(&domain->regions, &region->link);
        domain->references++;
    }
    pthread_mutex_unlock(&process.lock);
    if (status < 0)
        free(region);
    else
        *fid = &region->fid;
    return status;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr) {
    struct domain *domain = CONTAINER(fid, struct domain, fid.fid);

    if (fid->fclass != FI_CLASS_DOMAIN || !attr || attr->iov_count != 1 || !attr->mr_iov || attr->offset || flags)
        return -FI_EINVAL;
    if (attr->iface != FI_HMEM_SYSTEM)
        return -FI_ENOSYS;
    return region_open(domain, attr->mr_iov, attr->access, attr->requested_key, attr->context, mr);
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t wanted,
                   uint64_t flags, struct fid_mr **mr, void *context) {
    struct fi_mr_attr attr = {
        .mr_iov = iov, .iov_count = count, .access = access, .offset = offset, .requested_key = wanted, .context = context};

    return mr_regattr(fid, &attr, flags, mr);
}

static int mr_reg(struct fid *fid, const void *memory, size_t length, uint64_t access, uint64_t offset, uint64_t wanted,
                  uint64_t flags, struct fid_mr **mr, void *context) {
    struct iovec iov = {(void *)(uintptr_t)memory, length};

    return mr_regv(fid, &iov, 1, access, offset, wanted, flags, mr, context);
}

static struct fi_ops_mr mr_ops = {.size = sizeof(struct fi_ops_mr), .reg = mr_reg, .regv = mr_regv, .regattr = mr_regattr};

/* ---- Domains ---- */

void domain_progress(struct domain *domain, bool thorough) {
    /* A forked child must not touch the rings of its parent. */
    if (process.is_child)
        return;
    if (++domain->idle >= THOROUGH_ROUNDS) {
        domain->idle = 0;
        thorough = true;
    }
    FOR_EACH(item, following, &domain->endpoints) {
        struct endpoint *ep = CONTAINER(item, struct endpoint, link);

        if (ep->is_enabled)
            wire_progress(ep, thorough);
    }
    rma_progress();
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
    (void)domain;
    (void)info;
    (void)ep;
    (void)context;
    return -FI_ENOSYS;
}

static int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **set) {
    (void)domain;
    (void)attr;
    (void)set;
    return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context) {
    (void)domain;
    (void)attr;
    (void)stx;
    (void)context;
    return -FI_ENOSYS;
}

static int no_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context) {
    (void)domain;
    (void)attr;
    (void)ep;
    (void)context;
    return -FI_ENOSYS;
}

static int no_query_atomic(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr,
                           uint64_t flags) {
    (void)domain;
    (void)type;
    (void)op;
    (void)attr;
    (void)flags;
    return -FI_EOPNOTSUPP;
}

static struct fi_ops_domain domain_ops = {
    .size = offsetof(struct fi_ops_domain, query_collective),
    .av_open = av_open,
    .cq_open = cq_open,
    .endpoint = endpoint_open,
    .scalable_ep = no_scalable_ep,
    .cntr_open = cntr_open,
    .poll_open = no_poll_open,
    .stx_ctx = no_stx,
    .srx_ctx = no_srx,
    .query_atomic = no_query_atomic,
};

static int domain_close(struct fid *fid) {
    struct domain *domain = CONTAINER(fid, struct domain, fid.fid);

    pthread_mutex_lock(&process.lock);
    if (domain->references > 0) {
        pthread_mutex_unlock(&process.lock);
        return -FI_EBUSY;
    }
    if (!process.is_torn)
        link_remove(&domain->link);
    if (--process.domains == 0)
        close_session();
    pthread_mutex_unlock(&process.lock);
    __atomic_fetch_sub(&domain->fabric->references, 1, __ATOMIC_RELAXED);
    free(domain);
    return 0;
}

static struct fi_ops domain_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = domain_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int domain_open(struct fid_fabric *fabric_fid, struct fi_info *info, struct fid_domain **fid, void *context) {
    int mode = info && info->domain_attr ? info->domain_attr->mr_mode : (int)FI_MR_UNSPEC;
    struct domain *domain = calloc(1, sizeof(*domain));
    int status = 0;

    if (!domain)
        return -FI_ENOMEM;
    pthread_mutex_lock(&process.lock);
    if (process.is_child || process.is_torn) {
        WARN("a forked child has to close its parent's domains first, and needs a fork that met no other thread in libfabric\n");
        status = -FI_EOPBADSTATE;
    } else if (process.domains == 0) {
        watch_forks();
        status = open_session();
    }
    if (status == 0) {
        process.domains++;
        domain->fabric = CONTAINER(fabric_fid, struct fabric, fid);
        __atomic_fetch_add(&domain->fabric->references, 1, __ATOMIC_RELAXED);
        domain->has_virtual_addresses = mode == (int)FI_MR_BASIC || mode & FI_MR_VIRT_ADDR;
        domain->has_provider_keys = mode == (int)FI_MR_BASIC || mode & FI_MR_PROV_KEY;
        link_init(&domain->endpoints);
        link_init(&domain->regions);
        link_append(&process.all_domains, &domain->link);
        domain->fid = (struct fid_domain){{FI_CLASS_DOMAIN, context, &domain_fid_ops}, &domain_ops, &mr_ops};
        *fid = &domain->fid;
    }
    pthread_mutex_unlock(&process.lock);
    if (status < 0)
        free(domain);
    return status;
}

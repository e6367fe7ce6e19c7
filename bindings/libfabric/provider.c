/* memferry as a provider of libfabric: what it offers (fi_getinfo), fabrics and event queues; see provider.h and docs/libfabric.md.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "provider.h"

#define MESSAGE_CAPS (FI_MSG | FI_TAGGED | FI_SEND | FI_RECV)
#define RMA_CAPS (FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
/* Of the endpoint as a whole. */
#define MORE_CAPS (FI_SOURCE | FI_DIRECTED_RECV | FI_LOCAL_COMM)
#define CAPS (MESSAGE_CAPS | RMA_CAPS | MORE_CAPS)
#define TRANSMIT_CAPS (FI_MSG | FI_TAGGED | FI_SEND | FI_RMA | FI_READ | FI_WRITE)
#define RECEIVE_CAPS (FI_MSG | FI_TAGGED | FI_RECV | FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SOURCE | FI_DIRECTED_RECV)
#define TRANSMIT_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define RECEIVE_FLAGS FI_COMPLETION
#define MR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define EVENTS 256
/* No bits of a tag are reserved, and none have a meaning. */
#define TAG_FORMAT 0xaaaaaaaaaaaaaaaaULL

/* ---- What a program asks for, and what it gets ---- */

static bool exceeds(uint64_t wanted, uint64_t offered) { return (wanted & ~offered) != 0; }

static bool transmit_fits(const struct fi_tx_attr *hints) {
    return !hints || !(exceeds(hints->caps, TRANSMIT_CAPS | MORE_CAPS) || exceeds(hints->op_flags, TRANSMIT_FLAGS) ||
                       exceeds(hints->msg_order, FI_ORDER_SAS) || hints->comp_order || hints->inject_size > INJECT_BYTES ||
                       hints->size > MOST_SENDS || hints->iov_limit > MOST_BUFFERS || hints->rma_iov_limit > 1);
}

static bool receive_fits(const struct fi_rx_attr *hints) {
    return !hints || !(exceeds(hints->caps, RECEIVE_CAPS | MORE_CAPS) || exceeds(hints->op_flags, RECEIVE_FLAGS) ||
                       exceeds(hints->msg_order, FI_ORDER_SAS) || hints->comp_order || hints->size > MOST_SENDS ||
                       hints->iov_limit > MOST_BUFFERS);
}

static bool endpoint_fits(const struct fi_ep_attr *hints) {
    return !hints || !((hints->type != FI_EP_UNSPEC && hints->type != FI_EP_RDM) || hints->max_msg_size > MOST_MESSAGE ||
                       hints->tx_ctx_cnt > 1 || hints->rx_ctx_cnt > 1 || hints->auth_key_size > 0 || hints->max_order_raw_size ||
                       hints->max_order_war_size || hints->max_order_waw_size || hints->protocol_version > 1);
}

/* Peers of other nodes are not reached. Open MPI asks for them in any case, also for a job on one node, so a user may say that it
 * will not use them. */
static uint64_t remote_caps(void) {
    int claimed = 0;

    (void)fi_param_get_bool(&memferry_provider, "claim_remote", &claimed);
    return claimed ? FI_REMOTE_COMM : 0;
}

/* Later versions of libfabric have more kinds. */
static bool progress_fits(enum fi_progress wanted) { return wanted == FI_PROGRESS_UNSPEC || wanted == FI_PROGRESS_MANUAL; }

static bool domain_fits(const struct fi_domain_attr *hints) {
    return !hints ||
           !((hints->name && strcmp(hints->name, PROVIDER_NAME) != 0) || !progress_fits(hints->control_progress) ||
             !progress_fits(hints->data_progress) || hints->mr_key_size > KEY_BYTES || hints->cq_data_size > sizeof(uint64_t) ||
             exceeds(hints->caps, FI_LOCAL_COMM | remote_caps()) || hints->mr_iov_limit > 1 || hints->auth_key_size > 0);
}

static bool fits(const struct fi_info *hints) {
    return !hints ||
           !(exceeds(hints->caps, CAPS | remote_caps()) || (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != FI_ADDR_STR) ||
             !endpoint_fits(hints->ep_attr) || !domain_fits(hints->domain_attr) || !transmit_fits(hints->tx_attr) ||
             !receive_fits(hints->rx_attr) ||
             (hints->fabric_attr && hints->fabric_attr->name && strcmp(hints->fabric_attr->name, PROVIDER_NAME) != 0));
}

/* The modes of memory regions: of those that the program can cope with, the ones this provider gains by. */
static int mr_mode(uint32_t version, const struct fi_info *hints) {
    int wanted = hints && hints->domain_attr ? hints->domain_attr->mr_mode : (int)FI_MR_UNSPEC;

    if (!hints || !hints->domain_attr)
        return FI_VERSION_LT(version, FI_VERSION(1, 5)) ? (int)FI_MR_SCALABLE : FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    if (FI_VERSION_LT(version, FI_VERSION(1, 5)))
        return wanted & FI_MR_BASIC ? (int)FI_MR_BASIC : (int)FI_MR_SCALABLE;
    if (wanted == (int)FI_MR_BASIC || wanted == (int)FI_MR_SCALABLE)
        return wanted;
    /* FI_MR_LOCAL: where the program registers what it sends, the engine can move it. */
    return wanted & MR_MODES;
}

static uint64_t caps_of(const struct fi_info *hints) {
    uint64_t caps = hints ? hints->caps : 0;

    if (!caps)
        return MESSAGE_CAPS | RMA_CAPS | FI_SOURCE | FI_LOCAL_COMM;
    if (caps & (FI_MSG | FI_TAGGED) && !(caps & (FI_SEND | FI_RECV)))
        caps |= FI_SEND | FI_RECV;
    if (caps & FI_RMA && !(caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)))
        caps |= RMA_CAPS;
    return caps | FI_LOCAL_COMM;
}

static void fill_transmit(struct fi_tx_attr *attr, uint64_t caps, const struct fi_info *hints) {
    attr->caps = caps & TRANSMIT_CAPS;
    attr->op_flags = hints && hints->tx_attr ? hints->tx_attr->op_flags : 0;
    attr->msg_order = FI_ORDER_SAS;
    attr->inject_size = INJECT_BYTES;
    attr->size = MOST_SENDS;
    attr->iov_limit = MOST_BUFFERS;
    attr->rma_iov_limit = caps & FI_RMA ? 1 : 0;
}

static void fill_receive(struct fi_rx_attr *attr, uint64_t caps, const struct fi_info *hints) {
    attr->caps = caps & RECEIVE_CAPS;
    attr->op_flags = hints && hints->rx_attr ? hints->rx_attr->op_flags : 0;
    attr->msg_order = FI_ORDER_SAS;
    attr->size = MOST_SENDS;
    attr->iov_limit = MOST_BUFFERS;
}

static int fill_domain(struct fi_domain_attr *attr, int mode, const struct fi_info *hints) {
    const struct fi_domain_attr *wanted = hints ? hints->domain_attr : NULL;

    attr->name = strdup(PROVIDER_NAME);
    attr->threading = FI_THREAD_SAFE;
    attr->control_progress = FI_PROGRESS_MANUAL;
    attr->data_progress = FI_PROGRESS_MANUAL;
    attr->resource_mgmt = FI_RM_ENABLED;
    attr->av_type = wanted && wanted->av_type != FI_AV_UNSPEC ? wanted->av_type : FI_AV_TABLE;
    attr->mr_mode = mode;
    attr->mr_key_size = KEY_BYTES;
    attr->cq_data_size = sizeof(uint64_t);
    attr->cq_cnt = 1024;
    attr->ep_cnt = 1024;
    attr->tx_ctx_cnt = 1024;
    attr->rx_ctx_cnt = 1024;
    attr->max_ep_tx_ctx = 1;
    attr->max_ep_rx_ctx = 1;
    attr->cntr_cnt = 1024;
    attr->mr_iov_limit = 1;
    attr->mr_cnt = 65536;
    attr->caps = FI_LOCAL_COMM;
    return attr->name ? 0 : -FI_ENOMEM;
}

static void fill_endpoint(struct fi_ep_attr *attr) {
    attr->type = FI_EP_RDM;
    attr->protocol = FI_PROTO_UNSPEC;
    attr->protocol_version = 1;
    attr->max_msg_size = MOST_MESSAGE;
    attr->mem_tag_format = TAG_FORMAT;
    attr->tx_ctx_cnt = 1;
    attr->rx_ctx_cnt = 1;
}

/* An address that the program named itself. */
static int take_address(const char *node, const char *service, void **address, size_t *length) {
    struct name name;
    uid_t user;

    if (!node || service || !wire_name_parse(node, &name, &user))
        return -FI_ENODATA;
    *address = strdup(name.text);
    *length = strlen(name.text) + 1;
    return *address ? 0 : -FI_ENOMEM;
}

static int copy_address(const void *from, size_t length, void **address, size_t *to_length) {
    struct name name;
    uid_t user;
    char text[NAME_BYTES];

    if (length == 0 || length > sizeof(text))
        return -FI_ENODATA;
    memcpy(text, from, length);
    if (text[length - 1] != 0 || !wire_name_parse(text, &name, &user))
        return -FI_ENODATA;
    return take_address(text, NULL, address, to_length);
}

static int fill_addresses(struct fi_info *info, const char *node, const char *service, uint64_t flags, const struct fi_info *hints) {
    int status = 0;

    info->addr_format = FI_ADDR_STR;
    if (node && !(flags & FI_SOURCE))
        status = take_address(node, service, &info->dest_addr, &info->dest_addrlen);
    else if (hints && hints->dest_addr)
        status = copy_address(hints->dest_addr, hints->dest_addrlen, &info->dest_addr, &info->dest_addrlen);
    /* The name of an endpoint is chosen when it is made: it is no use to ask for one. */
    if (status == 0 && ((node && flags & FI_SOURCE) || (hints && hints->src_addr)))
        status = -FI_ENODATA;
    return status;
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                   struct fi_info **found) {
    uint64_t caps = caps_of(hints);
    int mode = mr_mode(version, hints), status;
    struct fi_info *info;

    *found = NULL;
    if (!fits(hints))
        return -FI_ENODATA;
    info = fi_allocinfo();
    if (!info)
        return -FI_ENOMEM;
    info->caps = caps;
    fill_transmit(info->tx_attr, caps, hints);
    fill_receive(info->rx_attr, caps, hints);
    fill_endpoint(info->ep_attr);
    info->fabric_attr->name = strdup(PROVIDER_NAME);
    /* libfabric writes the provider's name. */
    info->fabric_attr->prov_version = memferry_provider.version;
    info->fabric_attr->api_version = version;
    status = fill_domain(info->domain_attr, mode, hints);
    if (status == 0)
        status = fill_addresses(info, node, service, flags, hints);
    if (status == 0 && !info->fabric_attr->name)
        status = -FI_ENOMEM;
    if (status < 0) {
        fi_freeinfo(info);
        return status;
    }
    *found = info;
    return 0;
}

/* ---- Event queues: nothing here makes events, but programs write their own ---- */

struct event {
    uint32_t event;
    size_t length;
    uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 64];
};

struct eq {
    struct fid_eq fid;
    struct fabric *fabric;
    pthread_mutex_t lock;
    size_t first;
    size_t count;
    struct event events[EVENTS];
};

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buffer, size_t length, uint64_t flags) {
    struct eq *eq = CONTAINER(fid, struct eq, fid);
    ssize_t status = -FI_EAGAIN;

    pthread_mutex_lock(&eq->lock);
    if (eq->count > 0) {
        const struct event *first = &eq->events[eq->first];

        if (length < first->length) {
            status = -FI_ETOOSMALL;
        } else {
            *event = first->event;
            memcpy(buffer, first->bytes, first->length);
            status = (ssize_t)first->length;
            if (!(flags & FI_PEEK)) {
                eq->first = (eq->first + 1) % EVENTS;
                eq->count--;
            }
        }
    }
    pthread_mutex_unlock(&eq->lock);
    return status;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *entry, uint64_t flags) {
    (void)fid;
    (void)entry;
    (void)flags;
    return -FI_EAGAIN;
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t event, const void *buffer, size_t length, uint64_t flags) {
    struct eq *eq = CONTAINER(fid, struct eq, fid);
    ssize_t status = -FI_EAGAIN;

    if (flags || length > sizeof(eq->events[0].bytes))
        return -FI_EINVAL;
    pthread_mutex_lock(&eq->lock);
    if (eq->count < EVENTS) {
        struct event *last = &eq->events[(eq->first + eq->count++) % EVENTS];

        last->event = event;
        last->length = length;
        memcpy(last->bytes, buffer, length);
        status = (ssize_t)length;
    }
    pthread_mutex_unlock(&eq->lock);
    return status;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buffer, size_t length, int timeout, uint64_t flags) {
    struct timespec start, now;

    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        ssize_t status = eq_read(fid, event, buffer, length, flags);

        if (status != -FI_EAGAIN)
            return status;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (timeout >= 0 && (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >= timeout)
            return -FI_EAGAIN;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

static const char *eq_strerror(struct fid_eq *fid, int provider_error, const void *data, char *buffer, size_t length) {
    (void)fid;
    (void)data;
    if (buffer && length > 0)
        snprintf(buffer, length, "%s", mf_error_text(provider_error));
    return mf_error_text(provider_error);
}

static struct fi_ops_eq eq_ops = {
    .size = sizeof(struct fi_ops_eq),
    .read = eq_read,
    .readerr = eq_readerr,
    .write = eq_write,
    .sread = eq_sread,
    .strerror = eq_strerror,
};

static int eq_close(struct fid *fid) {
    struct eq *eq = CONTAINER(fid, struct eq, fid.fid);

    __atomic_fetch_sub(&eq->fabric->references, 1, __ATOMIC_RELAXED);
    pthread_mutex_destroy(&eq->lock);
    free(eq);
    return 0;
}

static struct fi_ops eq_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = eq_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int eq_open(struct fid_fabric *fabric_fid, struct fi_eq_attr *attr, struct fid_eq **fid, void *context) {
    enum fi_wait_obj object = attr ? attr->wait_obj : FI_WAIT_NONE;
    struct eq *eq;

    if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_YIELD)
        return -FI_ENOSYS;
    eq = calloc(1, sizeof(*eq));
    if (!eq)
        return -FI_ENOMEM;
    pthread_mutex_init(&eq->lock, NULL);
    eq->fabric = CONTAINER(fabric_fid, struct fabric, fid);
    __atomic_fetch_add(&eq->fabric->references, 1, __ATOMIC_RELAXED);
    eq->fid = (struct fid_eq){{FI_CLASS_EQ, context, &eq_fid_ops}, &eq_ops};
    *fid = &eq->fid;
    return 0;
}

/* ---- Fabrics ---- */

static int no_passive_endpoint(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **endpoint, void *context) {
    (void)fabric;
    (void)info;
    (void)endpoint;
    (void)context;
    return -FI_ENOSYS;
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **set) {
    (void)fabric;
    (void)attr;
    (void)set;
    return -FI_ENOSYS;
}

/* No object here has a descriptor to wait for, so none may be waited for. */
static int trywait(struct fid_fabric *fabric, struct fid **fids, int count) {
    (void)fabric;
    (void)fids;
    (void)count;
    return -FI_ENOSYS;
}

static struct fi_ops_fabric fabric_ops = {
    .size = sizeof(struct fi_ops_fabric),
    .domain = domain_open,
    .passive_ep = no_passive_endpoint,
    .eq_open = eq_open,
    .wait_open = no_wait_open,
    .trywait = trywait,
};

static int fabric_close(struct fid *fid) {
    struct fabric *fabric = CONTAINER(fid, struct fabric, fid.fid);

    if (__atomic_load_n(&fabric->references, __ATOMIC_RELAXED) > 0)
        return -FI_EBUSY;
    free(fabric);
    return 0;
}

static struct fi_ops fabric_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = fabric_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

static int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fid, void *context) {
    struct fabric *fabric;

    if (attr->name && strcmp(attr->name, PROVIDER_NAME) != 0)
        return -FI_ENODATA;
    fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return -FI_ENOMEM;
    fabric->fid = (struct fid_fabric){{FI_CLASS_FABRIC, context, &fabric_fid_ops}, &fabric_ops, attr->api_version};
    *fid = &fabric->fid;
    return 0;
}

static void cleanup(void) {}

struct fi_provider memferry_provider = {
    .version = FI_VERSION(0, 2),
    .name = PROVIDER_NAME,
    .getinfo = getinfo,
    .fabric = fabric_open,
    .cleanup = cleanup,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void);

/* The version of the API that this provider serves. A program asks for that of its own headers, and libfabric passes over providers
 * that serve an older one. All versions 1 and 2 have one ABI: structures only grow at their ends, libfabric allocates those that a
 * provider fills in, and what a program asks for that is unknown here is refused. */
static uint32_t served_version(void) {
    uint32_t built = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), present = fi_version();

    return FI_MAJOR(present) <= 2 && FI_VERSION_GE(present, built) ? present : built;
}

/* Where libfabric begins: it looks for this function in each library of FI_PROVIDER_PATH. */
struct fi_provider *fi_prov_ini(void) {
    memferry_provider.fi_version = served_version();
    fi_param_define(&memferry_provider, "socket", FI_PARAM_STRING, "Socket of the memferry service (default: /run/memferry.sock)");
    fi_param_define(&memferry_provider, "users", FI_PARAM_STRING,
                    "Numbers of further users who may connect, with commas, or \"any\" (default: only the program's own)");
    fi_param_define(&memferry_provider, "user_connections", FI_PARAM_SIZE_T,
                    "Connections that each of these users may have, and all of them together 16 times as many (default: 64)");
    fi_param_define(&memferry_provider, "user_bytes", FI_PARAM_SIZE_T,
                    "Bytes of messages that this process keeps for each of these users until it receives them (default: 64 MiB)");
    fi_param_define(&memferry_provider, "claim_remote", FI_PARAM_BOOL,
                    "Claim FI_REMOTE_COMM, which Open MPI asks for. Peers of other nodes are not reached all the same (default: no)");
    fi_param_define(&memferry_provider, "move", FI_PARAM_SIZE_T,
                    "Registered memory of at least so many bytes is moved into frames, whole pages of it; 0 for never (default: 65536; 0 with jemalloc)");
    return &memferry_provider;
}

/* Every function that libfabric's headers define in place. They call a provider's tables without a look whether an entry is there, so
 * each works here, or says that the provider does not offer it.
 *
 *     wrappers MEMFERRY SOCKET
 *
 * Left out are functions of objects that cannot be made here: what makes them (fi_passive_ep, fi_wait_open, fi_poll_open, fi_av_set,
 * fi_join) says so. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "peer.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_ext.h>

#define CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE)
#define MODES (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
#define ABSENT(call) CHECK((call) == -FI_ENOSYS)
#define WORKS(call) CHECK((call) == 0)

static char bytes[256];
static struct iovec iov = {bytes, 8};

/* Waits for so many completions. */
static void done(struct peer *peer, unsigned count) {
    struct fi_cq_tagged_entry entry;

    while (count-- > 0)
        CHECK(next(peer, &entry) == 0);
}

static void of_fabric(struct peer *peer) {
    struct fid *fids[] = {&peer->cq->fid};
    struct fid_domain *domain;
    struct fid_wait *wait;
    struct fid_pep *passive;

    WORKS(fi_domain2(peer->fabric, peer->info, &domain, 0, NULL));
    WORKS(fi_close(&domain->fid));
    ABSENT(fi_domain2(peer->fabric, peer->info, &domain, FI_PEER, NULL));
    ABSENT(fi_passive_ep(peer->fabric, peer->info, &passive, NULL));
    ABSENT(fi_wait_open(peer->fabric, NULL, &wait));
    ABSENT(fi_trywait(peer->fabric, fids, 1));
}

/* Of each kind of object. */
static void of_any(struct fid *fid, struct fid *other) {
    struct fid *alias;
    int value = 0;
    void *ops;

    ABSENT(fi_alias(fid, &alias, 0));
    ABSENT(fi_control(fid, FI_GETWAIT, &value));
    ABSENT(fi_get_val(fid, 1, &value));
    ABSENT(fi_set_val(fid, 1, &value));
    ABSENT(fi_open_ops(fid, "some", 0, &ops, NULL));
    ABSENT(fi_set_ops(fid, "some", 0, &ops, NULL));
    ABSENT(fi_export_fid(fid, 0, &alias, NULL));
    /* An endpoint takes what it is bound to before it is enabled. */
    if (fid->fclass != FI_CLASS_EP)
        ABSENT(fi_import_fid(fid, other, 0));
}

static void of_domain(struct peer *peer) {
    struct fi_collective_attr collective = {.op = FI_SUM, .datatype = FI_INT32};
    struct fi_atomic_attr atomic;
    struct fid_ep *ep;
    struct fid_poll *poll;
    struct fid_stx *stx;
    uint64_t key;

    WORKS(fi_endpoint2(peer->domain, peer->info, &ep, 0, NULL));
    WORKS(fi_close(&ep->fid));
    ABSENT(fi_endpoint2(peer->domain, peer->info, &ep, FI_PEER, NULL));
    ABSENT(fi_scalable_ep(peer->domain, peer->info, &ep, NULL));
    ABSENT(fi_stx_context(peer->domain, NULL, &stx, NULL));
    ABSENT(fi_srx_context(peer->domain, NULL, &ep, NULL));
    ABSENT(fi_poll_open(peer->domain, NULL, &poll));
    ABSENT(fi_domain_bind(peer->domain, &peer->cq->fid, 0));
    ABSENT(fi_mr_map_raw(peer->domain, 0, (uint8_t *)bytes, 8, &key, 0));
    ABSENT(fi_mr_unmap_key(peer->domain, 1));
    /* It was asked about one, and says no. */
    CHECK(fi_query_atomic(peer->domain, FI_INT32, FI_SUM, &atomic, 0) == -FI_EOPNOTSUPP);
    ABSENT(fi_query_collective(peer->domain, FI_BARRIER, &collective, 0));
}

static void of_regions(struct peer *peer) {
    struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND};
    size_t key_bytes = 8;
    struct fid_mr *mr;
    uint64_t base;

    WORKS(fi_mr_regv(peer->domain, &iov, 1, FI_SEND, 0, 0, 0, &mr, NULL));
    of_any(&mr->fid, &peer->cq->fid);
    ABSENT(fi_mr_bind(mr, &peer->ep->fid, 0));
    ABSENT(fi_mr_raw_attr(mr, &base, (uint8_t *)bytes, &key_bytes, 0));
    ABSENT(fi_mr_refresh(mr, &iov, 1, 0));
    WORKS(fi_mr_enable(mr));
    CHECK(fi_mr_key(mr) != FI_KEY_NOTAVAIL && fi_mr_desc(mr) != NULL);
    WORKS(fi_close(&mr->fid));
    WORKS(fi_mr_regattr(peer->domain, &attr, 0, &mr));
    WORKS(fi_close(&mr->fid));
}

static void of_vector(struct peer *peer) {
    char text[64];
    size_t length = sizeof(text);
    struct fid_av_set *set;
    fi_addr_t found;

    CHECK(fi_av_insertsvc(peer->av, peer->name, NULL, &found, 0, NULL) == 1);
    WORKS(fi_av_lookup(peer->av, found, text, &length));
    CHECK(strcmp(text, peer->name) == 0);
    length = sizeof(text);
    CHECK(fi_av_straddr(peer->av, peer->name, text, &length) == text && strcmp(text, peer->name) == 0);
    WORKS(fi_av_remove(peer->av, &found, 1, 0));
    ABSENT(fi_av_insertsym(peer->av, "node", 1, "service", 1, &found, 0, NULL));
    ABSENT(fi_av_bind(peer->av, &peer->cq->fid, 0));
    ABSENT(fi_av_set(peer->av, NULL, &set, NULL));
    CHECK(fi_rx_addr(1, 2, 8) == ((2ULL << 56) | 1));
}

static void of_counter(struct peer *peer) {
    struct fi_cntr_attr attr = {0};
    struct fid_cntr *counter;

    WORKS(fi_cntr_open(peer->domain, &attr, &counter, NULL));
    of_any(&counter->fid, &peer->cq->fid);
    WORKS(fi_cntr_set(counter, 3));
    WORKS(fi_cntr_add(counter, 4));
    WORKS(fi_cntr_seterr(counter, 1));
    WORKS(fi_cntr_adderr(counter, 1));
    CHECK(fi_cntr_read(counter) == 7 && fi_cntr_readerr(counter) == 2);
    WORKS(fi_cntr_wait(counter, 7, 0));
    CHECK(fi_cntr_wait(counter, 8, 0) == -FI_ETIMEDOUT);
    WORKS(fi_close(&counter->fid));
}

static void of_queues(struct peer *peer) {
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    struct fi_eq_err_entry event_error = {0};
    struct fi_eq_attr attr = {0};
    fi_addr_t source;
    struct fid_eq *eq;
    uint32_t event = 0;

    CHECK(fi_cq_read(peer->cq, &entry, 1) == -FI_EAGAIN && fi_cq_readfrom(peer->cq, &entry, 1, &source) == -FI_EAGAIN);
    CHECK(fi_cq_sread(peer->cq, &entry, 1, NULL, 0) == -FI_EAGAIN);
    CHECK(fi_cq_sreadfrom(peer->cq, &entry, 1, &source, NULL, 0) == -FI_EAGAIN);
    CHECK(fi_cq_readerr(peer->cq, &error, 0) == -FI_EAGAIN);
    WORKS(fi_cq_signal(peer->cq));
    CHECK(fi_cq_sread(peer->cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
    CHECK(fi_cq_strerror(peer->cq, 0, NULL, bytes, sizeof(bytes)) != NULL);
    WORKS(fi_eq_open(peer->fabric, &attr, &eq, NULL));
    of_any(&eq->fid, &peer->cq->fid);
    CHECK(fi_eq_write(eq, 1, "four", 4, 0) == 4 && fi_eq_read(eq, &event, bytes, 4, 0) == 4 && event == 1);
    CHECK(fi_eq_sread(eq, &event, bytes, 4, 0, 0) == -FI_EAGAIN && fi_eq_readerr(eq, &event_error, 0) == -FI_EAGAIN);
    CHECK(fi_eq_strerror(eq, 0, NULL, bytes, sizeof(bytes)) != NULL);
    WORKS(fi_close(&eq->fid));
}

static void of_connections(struct peer *peer) {
    /* The tables know only the class of an endpoint. */
    struct fid_pep passive = {.ops = peer->ep->ops, .cm = peer->ep->cm};
    char name[64];
    size_t length = sizeof(name);
    struct fid_mc *group;

    WORKS(fi_getname(&peer->ep->fid, name, &length));
    ABSENT(fi_setname(&peer->ep->fid, name, length));
    ABSENT(fi_getpeer(peer->ep, name, &length));
    ABSENT(fi_connect(peer->ep, name, NULL, 0));
    ABSENT(fi_accept(peer->ep, NULL, 0));
    ABSENT(fi_shutdown(peer->ep, 0));
    ABSENT(fi_join(peer->ep, name, 0, &group, NULL));
    ABSENT(fi_listen(&passive));
    ABSENT(fi_reject(&passive, &peer->ep->fid, NULL, 0));
}

static void of_endpoint(struct peer *peer) {
    size_t length = sizeof(bytes);
    struct fid_ep *other;

    CHECK(fi_enable(peer->ep) == -FI_EOPBADSTATE);
    CHECK(fi_ep_bind(peer->ep, &peer->cq->fid, FI_RECV) == -FI_EOPBADSTATE);
    CHECK(fi_scalable_ep_bind(peer->ep, &peer->cq->fid, FI_RECV) == -FI_EOPBADSTATE);
    CHECK(fi_cancel(&peer->ep->fid, bytes) == -FI_ENOENT);
    CHECK(fi_getopt(&peer->ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, bytes, &length) == -FI_ENOPROTOOPT);
    CHECK(fi_setopt(&peer->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, bytes, length) == -FI_ENOPROTOOPT);
    ABSENT(fi_ep_alias(peer->ep, &other, 0));
    ABSENT(fi_tx_context(peer->ep, 0, NULL, &other, NULL));
    ABSENT(fi_rx_context(peer->ep, 0, NULL, &other, NULL));
    /* fi_tx_size_left and fi_rx_size_left; calls of these are warned about. */
    CHECK(peer->ep->ops->tx_size_left(peer->ep) > 0 && peer->ep->ops->rx_size_left(peer->ep) > 0);
}

static void of_messages(struct peer *peer) {
    struct fi_msg message = {&iov, NULL, 1, peer->other, NULL, 0};
    struct fi_msg_tagged tagged = {&iov, NULL, 1, peer->other, 1, 0, NULL, 0};
    struct fid_ep *ep = peer->ep;
    fi_addr_t me = peer->other;

    for (int i = 0; i < 2; i++) {
        WORKS(fi_recv(ep, bytes, 8, NULL, me, NULL));
        WORKS(fi_recvv(ep, &iov, NULL, 1, me, NULL));
        WORKS(fi_recvmsg(ep, &message, 0));
        WORKS(fi_trecv(ep, bytes, 8, NULL, me, 1, 0, NULL));
        WORKS(fi_trecvv(ep, &iov, NULL, 1, me, 1, 0, NULL));
        WORKS(fi_trecvmsg(ep, &tagged, 0));
    }
    WORKS(fi_send(ep, bytes, 8, NULL, me, NULL));
    WORKS(fi_sendv(ep, &iov, NULL, 1, me, NULL));
    WORKS(fi_sendmsg(ep, &message, 0));
    WORKS(fi_senddata(ep, bytes, 8, NULL, 1, me, NULL));
    WORKS(fi_inject(ep, bytes, 8, me));
    WORKS(fi_injectdata(ep, bytes, 8, 1, me));
    WORKS(fi_tsend(ep, bytes, 8, NULL, me, 1, NULL));
    WORKS(fi_tsendv(ep, &iov, NULL, 1, me, 1, NULL));
    WORKS(fi_tsendmsg(ep, &tagged, 0));
    WORKS(fi_tsenddata(ep, bytes, 8, NULL, 1, me, 1, NULL));
    WORKS(fi_tinject(ep, bytes, 8, me, 1));
    WORKS(fi_tinjectdata(ep, bytes, 8, 1, me, 1));
    /* Injected messages have no completion at the sender. */
    done(peer, 12 + 8);
}

static void of_memory(struct peer *peer) {
    struct fi_rma_iov remote = {.len = 8};
    struct fi_msg_rma message = {&iov, NULL, 1, peer->other, &remote, 1, NULL, 0};
    struct fid_ep *ep = peer->ep;
    fi_addr_t me = peer->other;
    uint64_t address = (uintptr_t)bytes + 128;
    struct fid_mr *mr;

    WORKS(fi_mr_reg(peer->domain, bytes, sizeof(bytes), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    remote.addr = address;
    remote.key = mr->key;
    WORKS(fi_read(ep, bytes, 8, NULL, me, address, mr->key, NULL));
    WORKS(fi_readv(ep, &iov, NULL, 1, me, address, mr->key, NULL));
    WORKS(fi_readmsg(ep, &message, 0));
    WORKS(fi_write(ep, bytes, 8, NULL, me, address, mr->key, NULL));
    WORKS(fi_writev(ep, &iov, NULL, 1, me, address, mr->key, NULL));
    WORKS(fi_writemsg(ep, &message, 0));
    WORKS(fi_writedata(ep, bytes, 8, NULL, 1, me, address, mr->key, NULL));
    WORKS(fi_inject_write(ep, bytes, 8, me, address, mr->key));
    WORKS(fi_inject_writedata(ep, bytes, 8, 1, me, address, mr->key));
    /* Seven of this side; two that came with data. */
    done(peer, 7 + 2);
    WORKS(fi_close(&mr->fid));
}

static void of_atomics(struct peer *peer) {
    struct fi_ioc one = {bytes, 1};
    struct fi_msg_atomic message = {.msg_iov = &one, .iov_count = 1, .addr = peer->other, .datatype = FI_INT32, .op = FI_SUM};
    struct fid_ep *ep = peer->ep;
    fi_addr_t me = peer->other;
    size_t count;

    ABSENT(fi_atomic(ep, bytes, 1, NULL, me, 0, 0, FI_INT32, FI_SUM, NULL));
    ABSENT(fi_atomicv(ep, &one, NULL, 1, me, 0, 0, FI_INT32, FI_SUM, NULL));
    ABSENT(fi_atomicmsg(ep, &message, 0));
    ABSENT(fi_inject_atomic(ep, bytes, 1, me, 0, 0, FI_INT32, FI_SUM));
    ABSENT(fi_fetch_atomic(ep, bytes, 1, NULL, bytes, NULL, me, 0, 0, FI_INT32, FI_SUM, NULL));
    ABSENT(fi_fetch_atomicv(ep, &one, NULL, 1, &one, NULL, 1, me, 0, 0, FI_INT32, FI_SUM, NULL));
    ABSENT(fi_fetch_atomicmsg(ep, &message, &one, NULL, 1, 0));
    ABSENT(fi_compare_atomic(ep, bytes, 1, NULL, bytes, NULL, bytes, NULL, me, 0, 0, FI_INT32, FI_CSWAP, NULL));
    ABSENT(fi_compare_atomicv(ep, &one, NULL, 1, &one, NULL, 1, &one, NULL, 1, me, 0, 0, FI_INT32, FI_CSWAP, NULL));
    ABSENT(fi_compare_atomicmsg(ep, &message, &one, NULL, 1, &one, NULL, 1, 0));
    ABSENT(fi_atomicvalid(ep, FI_INT32, FI_SUM, &count));
    ABSENT(fi_fetch_atomicvalid(ep, FI_INT32, FI_SUM, &count));
    ABSENT(fi_compare_atomicvalid(ep, FI_INT32, FI_CSWAP, &count));
}

static void of_groups(struct peer *peer) {
    struct fid_ep *ep = peer->ep;
    struct fid_mc *group;

    ABSENT(fi_join_collective(ep, 0, NULL, 0, &group, NULL));
    ABSENT(fi_barrier(ep, 0, NULL));
    ABSENT(fi_barrier2(ep, 0, 0, NULL));
    ABSENT(fi_barrier2(ep, 0, FI_COMPLETION, NULL));
    ABSENT(fi_broadcast(ep, bytes, 1, NULL, 0, 0, FI_INT32, 0, NULL));
    ABSENT(fi_alltoall(ep, bytes, 1, NULL, bytes, NULL, 0, FI_INT32, 0, NULL));
    ABSENT(fi_allreduce(ep, bytes, 1, NULL, bytes, NULL, 0, FI_INT32, FI_SUM, 0, NULL));
    ABSENT(fi_allgather(ep, bytes, 1, NULL, bytes, NULL, 0, FI_INT32, 0, NULL));
    ABSENT(fi_reduce_scatter(ep, bytes, 1, NULL, bytes, NULL, 0, FI_INT32, FI_SUM, 0, NULL));
    ABSENT(fi_reduce(ep, bytes, 1, NULL, bytes, NULL, 0, 0, FI_INT32, FI_SUM, 0, NULL));
    ABSENT(fi_scatter(ep, bytes, 1, NULL, bytes, NULL, 0, 0, FI_INT32, 0, NULL));
    ABSENT(fi_gather(ep, bytes, 1, NULL, bytes, NULL, 0, 0, FI_INT32, 0, NULL));
    /* No function calls this entry. */
    ABSENT(ep->collective->msg(ep, NULL, NULL, NULL, 0, 0));
}

static void of_domain_and_fabric(struct peer *peer) {
    of_fabric(peer);
    of_domain(peer);
    of_any(&peer->fabric->fid, &peer->cq->fid);
    of_any(&peer->domain->fid, &peer->cq->fid);
    of_any(&peer->cq->fid, &peer->av->fid);
    of_any(&peer->av->fid, &peer->cq->fid);
    of_any(&peer->ep->fid, &peer->cq->fid);
}

static const struct {
    const char *title;
    void (*of)(struct peer *);
} families[] = {{"of domains and fabrics", of_domain_and_fabric},
                {"of memory regions", of_regions},
                {"of address vectors", of_vector},
                {"of counters", of_counter},
                {"of queues", of_queues},
                {"of connections", of_connections},
                {"of endpoints", of_endpoint},
                {"of messages", of_messages},
                {"of memory of peers", of_memory},
                {"of atomics", of_atomics},
                {"of collectives", of_groups}};

int main(int count, char **arguments) {
    struct peer peer = {.socket = -1};

    if (count != 3) {
        fprintf(stderr, "usage: %s MEMFERRY SOCKET\n", arguments[0]);
        return 2;
    }
    start_service(arguments[1], arguments[2]);
    open_domain(&peer, CAPS, MODES);
    open_endpoint(&peer);
    CHECK(fi_av_insert(peer.av, peer.name, 1, &peer.other, 0, NULL) == 1);
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        families[i].of(&peer);
        printf("ok: functions %s\n", families[i].title);
        fflush(stdout);
    }
    close_peer(&peer);
    stop_service();
    printf("all scenes passed\n");
    return 0;
}

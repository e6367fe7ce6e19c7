/* What this provider does not offer. libfabric's functions call these tables without a look whether they are there, so each entry
 * answers. SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "provider.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

int no_bind(struct fid *fid, struct fid *other, uint64_t flags) { return -FI_ENOSYS; }

int no_control(struct fid *fid, int command, void *argument) { return -FI_ENOSYS; }

int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) { return -FI_ENOSYS; }

#define ENDS_WITH_OP fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op
#define OF_RESULT struct fi_ioc *results, void **result_descs, size_t result_count
#define OF_COMPARISON const struct fi_ioc *compared, void **compared_descs, size_t compared_count

static ssize_t atomic_write(struct fid_ep *ep, const void *buffer, size_t count, void *desc, ENDS_WITH_OP, void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_writev(struct fid_ep *ep, const struct fi_ioc *iov, void **descs, size_t count, ENDS_WITH_OP, void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_writemsg(struct fid_ep *ep, const struct fi_msg_atomic *message, uint64_t flags) { return -FI_ENOSYS; }

static ssize_t atomic_inject(struct fid_ep *ep, const void *buffer, size_t count, ENDS_WITH_OP) { return -FI_ENOSYS; }

static ssize_t atomic_readwrite(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc,
                                ENDS_WITH_OP, void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_readwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **descs, size_t count, OF_RESULT, ENDS_WITH_OP,
                                 void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_readwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *message, OF_RESULT, uint64_t flags) {
    return -FI_ENOSYS;
}

static ssize_t atomic_compwrite(struct fid_ep *ep, const void *buffer, size_t count, void *desc, const void *compared,
                                void *compared_desc, void *result, void *result_desc, ENDS_WITH_OP, void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_compwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **descs, size_t count, OF_COMPARISON, OF_RESULT,
                                 ENDS_WITH_OP, void *context) {
    return -FI_ENOSYS;
}

static ssize_t atomic_compwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *message, OF_COMPARISON, OF_RESULT, uint64_t flags) {
    return -FI_ENOSYS;
}

static int atomic_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) { return -FI_ENOSYS; }

struct fi_ops_atomic unoffered_atomic_ops = {
    .size = sizeof(struct fi_ops_atomic),
    .write = atomic_write,
    .writev = atomic_writev,
    .writemsg = atomic_writemsg,
    .inject = atomic_inject,
    .readwrite = atomic_readwrite,
    .readwritev = atomic_readwritev,
    .readwritemsg = atomic_readwritemsg,
    .compwrite = atomic_compwrite,
    .compwritev = atomic_compwritev,
    .compwritemsg = atomic_compwritemsg,
    .writevalid = atomic_valid,
    .readwritevalid = atomic_valid,
    .compwritevalid = atomic_valid,
};

static ssize_t barrier(struct fid_ep *ep, fi_addr_t group, void *context) { return -FI_ENOSYS; }

static ssize_t broadcast(struct fid_ep *ep, void *buffer, size_t count, void *desc, fi_addr_t group, fi_addr_t root,
                         enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* Of alltoall and allgather. */
static ssize_t exchange(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc,
                        fi_addr_t group, enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* Of allreduce and reduce_scatter. */
static ssize_t reduce_for_all(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc,
                              fi_addr_t group, enum fi_datatype type, enum fi_op op, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

static ssize_t reduce(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc,
                      fi_addr_t group, fi_addr_t root, enum fi_datatype type, enum fi_op op, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

/* Of scatter and gather. */
static ssize_t spread(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc,
                      fi_addr_t group, fi_addr_t root, enum fi_datatype type, uint64_t flags, void *context) {
    return -FI_ENOSYS;
}

static ssize_t collective_msg(struct fid_ep *ep, const struct fi_msg_collective *message, OF_RESULT, uint64_t flags) {
    return -FI_ENOSYS;
}

struct fi_ops_collective unoffered_collective_ops = {
    /* Without barrier2, for which libfabric looks first. */
    .size = offsetof(struct fi_ops_collective, barrier2),
    .barrier = barrier,
    .broadcast = broadcast,
    .alltoall = exchange,
    .allreduce = reduce_for_all,
    .allgather = exchange,
    .reduce_scatter = reduce_for_all,
    .reduce = reduce,
    .scatter = spread,
    .gather = spread,
    .msg = collective_msg,
};

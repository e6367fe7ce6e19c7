/* Completion queues and counters. A queue grows, so no completion is lost. Waiting is polling: it spins, then gives the CPU away,
 * then sleeps for short times. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "provider.h"

#define CAPACITY 1024
/* Rounds of a wait before it gives the CPU away, and before it sleeps. */
#define SPINS 200
#define YIELDS 400
#define NAP_NANOSECONDS 50000
/* Polls in a row that found nothing, after which a poll gives the CPU away: the peer may need this one. */
#define IDLE_POLLS 1000

uint64_t now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* One round of a wait; false when its time is over. */
static bool pause_round(unsigned round, int timeout, uint64_t *end) {
    if (timeout >= 0) {
        if (*end == 0)
            *end = now_ms() + (uint64_t)timeout;
        else if (now_ms() >= *end)
            return false;
    }
    if (round > YIELDS)
        nanosleep(&(struct timespec){0, NAP_NANOSECONDS}, NULL);
    else if (round > SPINS)
        sched_yield();
    return true;
}

void cq_add(struct cq *cq, const struct entry *entry) {
    if (cq->count == cq->capacity) {
        size_t capacity = 2 * cq->capacity;
        struct entry *larger = malloc(capacity * sizeof(*larger));

        if (!larger) {
            WARN("no memory for a completion: it is lost\n");
            return;
        }
        for (size_t i = 0; i < cq->count; i++)
            larger[i] = cq->entries[(cq->first + i) % cq->capacity];
        free(cq->entries);
        cq->entries = larger;
        cq->first = 0;
        cq->capacity = capacity;
    }
    cq->entries[(cq->first + cq->count++) % cq->capacity] = *entry;
}

static void drop_first(struct cq *cq) {
    cq->first = (cq->first + 1) % cq->capacity;
    cq->count--;
}

static void *write_entry(const struct cq *cq, const struct entry *entry, void *to) {
    struct fi_cq_tagged_entry *tagged = to;
    struct fi_cq_data_entry *data = to;
    struct fi_cq_msg_entry *message = to;

    switch (cq->format) {
    case FI_CQ_FORMAT_TAGGED:
        *tagged = (struct fi_cq_tagged_entry){entry->context, entry->flags, entry->length, entry->buffer, entry->data, entry->tag};
        return tagged + 1;
    case FI_CQ_FORMAT_DATA:
        *data = (struct fi_cq_data_entry){entry->context, entry->flags, entry->length, entry->buffer, entry->data};
        return data + 1;
    case FI_CQ_FORMAT_MSG:
        *message = (struct fi_cq_msg_entry){entry->context, entry->flags, entry->length};
        return message + 1;
    default:
        *(struct fi_cq_entry *)to = (struct fi_cq_entry){entry->context};
        return (struct fi_cq_entry *)to + 1;
    }
}

static ssize_t take(struct cq *cq, void *to, size_t count, fi_addr_t *source) {
    size_t taken = 0;

    while (taken < count && cq->count > 0) {
        const struct entry *entry = &cq->entries[cq->first];

        if (entry->error)
            break;
        to = write_entry(cq, entry, to);
        if (source)
            source[taken] = entry->source;
        taken++;
        drop_first(cq);
    }
    if (taken > 0)
        return (ssize_t)taken;
    return cq->count > 0 ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t read_from(struct cq *cq, void *to, size_t count, fi_addr_t *source, bool thorough) {
    ssize_t taken;
    bool is_idle;

    pthread_mutex_lock(&process.lock);
    if (cq->count == 0 || count == 0)
        domain_progress(cq->domain, thorough);
    taken = count > 0 ? take(cq, to, count, source) : 0;
    /* Nothing will come in a forked child. */
    if (taken == -FI_EAGAIN && process.is_child)
        taken = -FI_EOPBADSTATE;
    cq->idle_polls = taken == -FI_EAGAIN ? cq->idle_polls + 1 : 0;
    is_idle = cq->idle_polls > IDLE_POLLS;
    pthread_mutex_unlock(&process.lock);
    if (is_idle)
        sched_yield();
    return taken;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *to, size_t count, fi_addr_t *source) {
    return read_from(CONTAINER(fid, struct cq, fid), to, count, source, false);
}

static ssize_t cq_read(struct fid_cq *fid, void *to, size_t count) { return cq_readfrom(fid, to, count, NULL); }

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *to, uint64_t flags) {
    struct cq *cq = CONTAINER(fid, struct cq, fid);
    ssize_t status = -FI_EAGAIN;

    (void)flags;
    pthread_mutex_lock(&process.lock);
    if (cq->count > 0 && cq->entries[cq->first].error) {
        const struct entry *entry = &cq->entries[cq->first];

        to->op_context = entry->context;
        to->flags = entry->flags;
        to->len = entry->length;
        to->buf = entry->buffer;
        to->data = entry->data;
        to->tag = entry->tag;
        to->olen = entry->overflow;
        to->err = entry->error;
        to->prov_errno = entry->provider_error;
        to->err_data_size = 0;
        drop_first(cq);
        status = 1;
    }
    pthread_mutex_unlock(&process.lock);
    return status;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *to, size_t count, fi_addr_t *source, const void *condition, int timeout) {
    struct cq *cq = CONTAINER(fid, struct cq, fid);
    uint64_t end = 0;

    (void)condition;
    for (unsigned round = 0;; round++) {
        ssize_t taken = read_from(cq, to, count, source, round > SPINS);
        bool is_signalled;

        if (taken != -FI_EAGAIN)
            return taken;
        is_signalled = __atomic_exchange_n(&cq->is_signalled, false, __ATOMIC_RELAXED);
        if (is_signalled || !pause_round(round, timeout, &end))
            return -FI_EAGAIN;
    }
}

static ssize_t cq_sread(struct fid_cq *fid, void *to, size_t count, const void *condition, int timeout) {
    return cq_sreadfrom(fid, to, count, NULL, condition, timeout);
}

static int cq_signal(struct fid_cq *fid) {
    __atomic_store_n(&CONTAINER(fid, struct cq, fid)->is_signalled, true, __ATOMIC_RELAXED);
    return 0;
}

static const char *cq_strerror(struct fid_cq *fid, int provider_error, const void *data, char *buffer, size_t length) {
    const char *text = provider_error ? mf_error_text(provider_error) : "no error of memferry";

    (void)fid;
    (void)data;
    if (buffer && length > 0)
        snprintf(buffer, length, "%s", text);
    return text;
}

static struct fi_ops_cq cq_ops = {
    .size = sizeof(struct fi_ops_cq),
    .read = cq_read,
    .readfrom = cq_readfrom,
    .readerr = cq_readerr,
    .sread = cq_sread,
    .sreadfrom = cq_sreadfrom,
    .signal = cq_signal,
    .strerror = cq_strerror,
};

static int cq_close(struct fid *fid) {
    struct cq *cq = CONTAINER(fid, struct cq, fid.fid);
    int status = -FI_EBUSY;

    pthread_mutex_lock(&process.lock);
    if (cq->references == 0) {
        cq->domain->references--;
        status = 0;
    }
    pthread_mutex_unlock(&process.lock);
    if (status == 0) {
        free(cq->entries);
        free(cq);
    }
    return status;
}

static struct fi_ops cq_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = cq_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int cq_open(struct fid_domain *domain_fid, struct fi_cq_attr *attr, struct fid_cq **fid, void *context) {
    struct domain *domain = CONTAINER(domain_fid, struct domain, fid);
    enum fi_cq_format format = attr ? attr->format : FI_CQ_FORMAT_UNSPEC;
    enum fi_wait_obj object = attr ? attr->wait_obj : FI_WAIT_NONE;
    struct cq *cq;

    if (format > FI_CQ_FORMAT_TAGGED || (attr && attr->flags & ~FI_AFFINITY))
        return -FI_EINVAL;
    /* There is no descriptor that a peer's writes into shared memory would wake. */
    if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_YIELD)
        return -FI_ENOSYS;
    if (attr && attr->wait_cond != FI_CQ_COND_NONE)
        return -FI_ENOSYS;
    cq = calloc(1, sizeof(*cq));
    if (!cq)
        return -FI_ENOMEM;
    cq->capacity = CAPACITY;
    cq->entries = malloc(cq->capacity * sizeof(*cq->entries));
    if (!cq->entries) {
        free(cq);
        return -FI_ENOMEM;
    }
    cq->domain = domain;
    cq->format = format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : format;
    cq->fid = (struct fid_cq){{FI_CLASS_CQ, context, &cq_fid_ops}, &cq_ops};
    pthread_mutex_lock(&process.lock);
    domain->references++;
    pthread_mutex_unlock(&process.lock);
    *fid = &cq->fid;
    return 0;
}

/* ---- Counters ---- */

static uint64_t cntr_value(struct fid_cntr *fid, bool errors) {
    struct cntr *cntr = CONTAINER(fid, struct cntr, fid);
    uint64_t value;

    pthread_mutex_lock(&process.lock);
    domain_progress(cntr->domain, false);
    value = errors ? cntr->errors : cntr->value;
    pthread_mutex_unlock(&process.lock);
    return value;
}

static uint64_t cntr_read(struct fid_cntr *fid) { return cntr_value(fid, false); }

static uint64_t cntr_readerr(struct fid_cntr *fid) { return cntr_value(fid, true); }

static int cntr_change(struct fid_cntr *fid, bool errors, bool add, uint64_t value) {
    struct cntr *cntr = CONTAINER(fid, struct cntr, fid);
    uint64_t *changed = errors ? &cntr->errors : &cntr->value;

    pthread_mutex_lock(&process.lock);
    *changed = add ? *changed + value : value;
    pthread_mutex_unlock(&process.lock);
    return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value) { return cntr_change(fid, false, true, value); }

static int cntr_set(struct fid_cntr *fid, uint64_t value) { return cntr_change(fid, false, false, value); }

static int cntr_adderr(struct fid_cntr *fid, uint64_t value) { return cntr_change(fid, true, true, value); }

static int cntr_seterr(struct fid_cntr *fid, uint64_t value) { return cntr_change(fid, true, false, value); }

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout) {
    struct cntr *cntr = CONTAINER(fid, struct cntr, fid);
    uint64_t errors = 0, end = 0;

    for (unsigned round = 0;; round++) {
        uint64_t value, failed;
        bool is_child;

        pthread_mutex_lock(&process.lock);
        domain_progress(cntr->domain, round > SPINS);
        value = cntr->value;
        failed = cntr->errors;
        is_child = process.is_child;
        pthread_mutex_unlock(&process.lock);
        if (value >= threshold)
            return 0;
        if (is_child)
            return -FI_EOPBADSTATE;
        if (round == 0)
            errors = failed;
        if (failed != errors)
            return -FI_EAVAIL;
        if (!pause_round(round, timeout, &end))
            return -FI_ETIMEDOUT;
    }
}

static struct fi_ops_cntr cntr_ops = {
    .size = sizeof(struct fi_ops_cntr),
    .read = cntr_read,
    .readerr = cntr_readerr,
    .add = cntr_add,
    .set = cntr_set,
    .wait = cntr_wait,
    .adderr = cntr_adderr,
    .seterr = cntr_seterr,
};

static int cntr_close(struct fid *fid) {
    struct cntr *cntr = CONTAINER(fid, struct cntr, fid.fid);
    int status = -FI_EBUSY;

    pthread_mutex_lock(&process.lock);
    if (cntr->references == 0) {
        cntr->domain->references--;
        status = 0;
    }
    pthread_mutex_unlock(&process.lock);
    if (status == 0)
        free(cntr);
    return status;
}

static struct fi_ops cntr_fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = cntr_close,
    .bind = no_bind,
    .control = no_control,
    .ops_open = no_ops_open,
};

int cntr_open(struct fid_domain *domain_fid, struct fi_cntr_attr *attr, struct fid_cntr **fid, void *context) {
    struct domain *domain = CONTAINER(domain_fid, struct domain, fid);
    enum fi_wait_obj object = attr ? attr->wait_obj : FI_WAIT_NONE;
    struct cntr *cntr;

    if (attr && (attr->events != FI_CNTR_EVENTS_COMP || attr->flags))
        return -FI_EINVAL;
    if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_YIELD)
        return -FI_ENOSYS;
    cntr = calloc(1, sizeof(*cntr));
    if (!cntr)
        return -FI_ENOMEM;
    cntr->domain = domain;
    cntr->fid = (struct fid_cntr){{FI_CLASS_CNTR, context, &cntr_fid_ops}, &cntr_ops};
    pthread_mutex_lock(&process.lock);
    domain->references++;
    pthread_mutex_unlock(&process.lock);
    *fid = &cntr->fid;
    return 0;
}

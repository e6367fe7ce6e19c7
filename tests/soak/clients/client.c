/* The soak's client in C: random transfers through libmemferry, each checked against a model of the memory.
 *
 *   connect ─► cells: two frames and their contents ─ one transfer each ─► exactly one completion ─► the same bytes?
 *
 * The runner reads its output (tests/soak/src/output.rs). Usage: client SOCKET SEED */
#include <memferry.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CELLS 5
#define BYTES 70000u
#define PATIENCE_NS 60000000000ll

enum work { COPY, MOVE, FILL, XOR, CRC, COMPARE, DUAL, GATHER, NOTHING, WORKS };

/* Two frames, the model of their bytes, and the transfer in progress there. */
struct cell {
    mf_frame frames[2];
    unsigned char model[2][BYTES];
    mf_ticket ticket;
    enum work work;
    unsigned from, to, length, value;
    int busy, cancelled, limited;
};

static struct cell cells[CELLS];
static uint64_t state, ends, bytes;
static struct timespec last_report;

static uint64_t next(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static unsigned below(unsigned end) { return end ? (unsigned)(next() % end) : 0; }

static void finding(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("finding ");
    vprintf(format, list);
    printf(" (%s)\n", mf_last_message());
    exit(1);
}

static void report(int now) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    long ms = (time.tv_sec - last_report.tv_sec) * 1000 + (time.tv_nsec - last_report.tv_nsec) / 1000000;
    if (now || ms > 200) {
        last_report = time;
        printf("at %llu %llu\n", (unsigned long long)ends, (unsigned long long)bytes);
        fflush(stdout);
    }
}

static void pause_briefly(void) {
    struct timespec time = {0, 20000000};
    nanosleep(&time, NULL);
}

/* Reports a failed call, after which the session is over. */
static void report_error(mf_error error) {
    switch ((int)error) {
    case MF_ERROR_NO_SERVICE:
        break;
    case MF_ERROR_SERVICE_LOST:
    case MF_ERROR_OUTCOME_UNKNOWN:
        printf("lost 0\n");
        break;
    case MF_ERROR_SESSION_ENDED:
        printf("ended 0 %s\n", mf_last_message());
        break;
    /* A refused session has the first error number, whatever the reason. */
    case MF_ERROR_REFUSED_QUOTA:
    case MF_ERROR_REFUSED_SYSTEM:
        printf("refused 0 system %s\n", mf_last_message());
        break;
    case MF_ERROR_REFUSED_STOPPING:
    case MF_ERROR_SERVICE_STOPPING:
    case MF_ERROR_CANCELLED:
        printf("refused 0 stopping %s\n", mf_last_message());
        break;
    /* Of the engines in this test only a lost engine process that does not exit ends a transfer so. */
    case MF_ERROR_CHANNEL_FAULTED:
        printf("refused 0 lingering\n");
        break;
    case MF_ERROR_SYSTEM:
        printf("refused 0 own %s\n", mf_last_message());
        break;
    default:
        finding("error %d", (int)error);
    }
    fflush(stdout);
}

static unsigned crc_of(const unsigned char *at, unsigned length, unsigned seed) {
    unsigned crc = ~seed;
    while (length--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static mf_range part(const struct cell *cell, int frame, unsigned offset, unsigned length) {
    mf_range range = {cell->frames[frame], offset, length};
    return range;
}

static mf_error submit(mf_queue queue, struct cell *cell) {
    mf_terms terms = MF_TERMS_INIT;
    unsigned half;
    cell->work = (enum work)below(WORKS);
    cell->length = below(4) ? below(3000) : below(BYTES / 2);
    half = cell->length / 3;
    cell->from = below(BYTES - cell->length);
    cell->to = below(BYTES - cell->length);
    cell->value = (unsigned)next() & 255;
    cell->cancelled = 0;
    cell->limited = below(12) == 0;
    terms.within_ns = cell->limited ? 1 + below(2000000) : 0;
    terms.flags = below(3) ? 0 : MF_FLAG_STAGED;
    terms.hint = below(3);
    mf_range from = part(cell, 0, cell->from, cell->length), to = part(cell, 1, cell->to, cell->length);
    mf_range own = part(cell, 0, cell->to, cell->length), both[2] = {from, to};
    mf_range cut[2] = {part(cell, 1, cell->to, half), part(cell, 1, cell->to + half, cell->length - half)};
    switch (cell->work) {
    case COPY:
        return mf_submit_copy(queue, from, to, &terms, &cell->ticket);
    case MOVE:
        return mf_submit_copy(queue, from, own, &terms, &cell->ticket);
    case FILL:
        return mf_submit_fill(queue, to, cell->value, 1, &terms, &cell->ticket);
    case XOR:
        return mf_submit_xor(queue, both, 2, to, &terms, &cell->ticket);
    case CRC:
        return mf_submit_crc32c(queue, from, cell->value, &terms, &cell->ticket);
    case COMPARE:
        return mf_submit_compare(queue, from, to, &terms, &cell->ticket);
    case DUAL:
        /* The source is in the other frame, so that nothing overlaps. */
        return mf_submit_dual_copy(queue, from, part(cell, 1, 0, cell->length),
                                   part(cell, 1, BYTES / 2, cell->length), &terms, &cell->ticket);
    case GATHER:
        return mf_submit_scatter_gather(queue, &from, 1, cut, 2, &terms, &cell->ticket);
    default:
        return mf_submit_nop(queue, &terms, &cell->ticket);
    }
}

/* Applies the first `done` bytes to the model; returns the completion's expected value. */
static uint64_t expected(struct cell *cell, unsigned done) {
    unsigned char *from = cell->model[0] + cell->from, *to = cell->model[1] + cell->to;
    unsigned at;
    switch (cell->work) {
    case COPY:
    case GATHER:
        memcpy(to, from, done);
        return 0;
    case MOVE:
        memmove(cell->model[0] + cell->to, from, done);
        return 0;
    case FILL:
        memset(to, (int)cell->value, done);
        return 0;
    case XOR:
        for (at = 0; at < done; at++)
            to[at] ^= from[at];
        return 0;
    case CRC:
        return crc_of(from, cell->length, cell->value);
    case COMPARE:
        for (at = 0; at < cell->length && from[at] == to[at];)
            at++;
        return at;
    case DUAL:
        memcpy(cell->model[1], from, done);
        memcpy(cell->model[1] + BYTES / 2, from, done);
        return 0;
    default:
        return 0;
    }
}

/* An engine process that was killed may have written more than it reported: the model of frame 1 takes over what it may write. */
static void take_over(struct cell *cell, const unsigned char *found) {
    if (cell->work == CRC || cell->work == COMPARE || cell->work == NOTHING || cell->work == MOVE)
        return;
    if (cell->work == DUAL) {
        memcpy(cell->model[1], found, cell->length);
        memcpy(cell->model[1] + BYTES / 2, found + BYTES / 2, cell->length);
    } else {
        memcpy(cell->model[1] + cell->to, found + cell->to, cell->length);
    }
}

/* Judges a completion; 1 when the session is over. */
static int ended(const mf_completion *done) {
    static unsigned char found[BYTES];
    struct cell *cell = cells;
    while (cell < cells + CELLS &&
           !(cell->busy && cell->ticket.tag == done->ticket.tag && cell->ticket.queue == done->ticket.queue))
        cell++;
    if (cell == cells + CELLS)
        finding("a completion without outstanding transfer");
    cell->busy = 0;
    ends++;
    bytes += done->bytes_done;
    int early = (cell->cancelled && done->error == MF_ERROR_CANCELLED) ||
                (cell->limited && (done->error == MF_ERROR_DEADLINE_EXCEEDED ||
                                   done->error == MF_ERROR_DEADLINE_UNREACHABLE)) ||
                done->error == MF_ERROR_WAITING_QUOTA;
    if (done->error != MF_ERROR_NONE && !early) {
        report_error(done->error);
        return 1;
    }
    uint64_t value = expected(cell, (unsigned)done->bytes_done);
    if (!early && value != done->value)
        finding("work %d found %llu, not %llu", (int)cell->work, (unsigned long long)done->value,
                (unsigned long long)value);
    for (int frame = 0; frame < 2; frame++) {
        if (mf_frame_read(cell->frames[frame], 0, found, BYTES) != MF_ERROR_NONE)
            finding("a frame cannot be read");
        /* The engine chooses which half of a move within one frame comes first. */
        if (early && cell->work == MOVE)
            memcpy(cell->model[frame], found, BYTES);
        if (early && done->engine == MF_ENGINE_EXTERNAL && frame == 1)
            take_over(cell, found);
        if (memcmp(found, cell->model[frame], BYTES) != 0)
            finding("frame %d differs after work %d of %u bytes from %u to %u, %llu done by engine %d", frame,
                    (int)cell->work, cell->length, cell->from, cell->to, (unsigned long long)done->bytes_done,
                    (int)done->engine);
    }
    report(0);
    return 0;
}

static int outstanding(void) {
    int count = 0;
    for (int cell = 0; cell < CELLS; cell++)
        count += cells[cell].busy;
    return count;
}

/* Takes one completion by one of the functions; 1 when the session is over. */
static int take(mf_queue queue) {
    mf_completion done;
    struct cell *cell = &cells[below(CELLS)];
    mf_error error;
    if (cell->busy && below(3) == 0) {
        if (below(2)) {
            int over = 0;
            error = mf_wait_range(queue, cell->ticket, 0, below(BYTES), PATIENCE_NS, &over);
            if (error != MF_ERROR_NONE && (error < 100 || !over))
                finding("waiting for a part: %d", (int)error);
        }
        error = mf_wait(queue, cell->ticket, PATIENCE_NS, &done);
    } else {
        error = mf_wait_any(queue, PATIENCE_NS, &done);
    }
    if (error != MF_ERROR_NONE && error < 100)
        finding("waiting: %d, of %d outstanding", (int)error, outstanding());
    if (error != done.error)
        finding("waiting: %d, and %d in the completion", (int)error, (int)done.error);
    return ended(&done);
}

/* After a loss every other transfer has a completion too, and no further one comes. */
static void drain(mf_queue queue) {
    mf_completion done;
    for (int left = outstanding(); left > 0; left--) {
        mf_error error = mf_wait_any(queue, PATIENCE_NS, &done);
        if (error != MF_ERROR_NONE && error < 100)
            finding("waiting after a loss: %d, of %d", (int)error, left);
    }
    if (mf_poll(queue, &done) != MF_ERROR_NOTHING)
        finding("an additional completion of a lost service");
}

static void session(mf_client client, unsigned rounds) {
    mf_queue queue;
    mf_completion done;
    mf_error error;
    int over = 0;
    if ((error = mf_queue_open(client, 8, &queue)) != MF_ERROR_NONE) {
        report_error(error);
        return;
    }
    memset(cells, 0, sizeof cells);
    for (int cell = 0; cell < CELLS; cell++)
        for (int frame = 0; frame < 2; frame++) {
            error = mf_frame_allocate(client, BYTES, &cells[cell].frames[frame]);
            if (error != MF_ERROR_NONE) {
                report_error(error);
                goto closing;
            }
            for (unsigned at = 0; at < BYTES; at++)
                cells[cell].model[frame][at] = (unsigned char)next();
            if (mf_frame_write(cells[cell].frames[frame], 0, cells[cell].model[frame], BYTES) != MF_ERROR_NONE)
                finding("a frame cannot be written");
        }
    for (unsigned round = 0; round < rounds && !over; round++) {
        struct cell *cell = &cells[below(CELLS)];
        if (!cell->busy) {
            error = submit(queue, cell);
            cell->busy = error == MF_ERROR_NONE;
            over = error != MF_ERROR_NONE;
            if (over)
                report_error(error);
        } else if (below(4) == 0) {
            cell->cancelled = 1;
            error = mf_cancel(queue, cell->ticket);
            if (error != MF_ERROR_NONE && error != MF_ERROR_UNKNOWN_TICKET)
                finding("cancel: %d", (int)error);
        } else {
            over = take(queue);
        }
    }
    while (!over && outstanding() > 0)
        over = take(queue);
    if (over)
        drain(queue);
    else if (mf_poll(queue, &done) != MF_ERROR_NOTHING)
        finding("an additional completion");
closing:
    mf_queue_close(queue);
    for (int cell = 0; cell < CELLS; cell++)
        for (int frame = 0; frame < 2 && cells[cell].frames[frame].id; frame++)
            mf_frame_free(cells[cell].frames[frame]);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    state = strtoull(argv[2], NULL, 10);
    clock_gettime(CLOCK_MONOTONIC, &last_report);
    unsigned sessions = 1 + below(6);
    for (unsigned tries = 0; sessions > 0 && tries < 1000; tries++) {
        mf_client client;
        mf_error error = mf_connect(argv[1], &client);
        if (error != MF_ERROR_NONE) {
            report_error(error);
            report(0);
            pause_briefly();
            continue;
        }
        sessions--;
        session(client, 20 + below(3000));
        mf_disconnect(client);
    }
    report(1);
    return 0;
}

/*
 * The twin of remote reads that are checked at the owner: the same extra copy beside UCX, and nothing else.
 *
 *   serve: memory ─ memcpy ─► slot of memory that is registered ─ ucp_am_send_nbx ─► read: its memory
 *
 * Two processes of this program: `remote serve BYTES` and `remote read BYTES`. Each prints the address of its UCX worker, and
 * reads that of the other one. Then the reader takes commands, one a line: `LENGTH COUNT AHEAD` reads the first LENGTH bytes COUNT times, in
 * chunks of 256 KiB, of which so many are under way, and prints the nanoseconds that it took. Both fill their memory with the same random
 * bytes from the same seed, the reader only to compare what came the first time. With the word `thread`, another thread of the server
 * copies, as the service does beside its link. With the word `all`, both ends copy as often as links do: the server from its slot into a
 * message, the reader from the message that came into its memory.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { CHUNK = 256 << 10, SLOTS = 64, REQUEST = 1, DATA = 2, LONGEST_ADDRESS = 64 << 10 };

struct request {
    uint64_t offset;
    uint64_t length;
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer;
static unsigned char *memory;
static uint64_t memory_bytes;
/* Copies of links are made as well, by way of these. */
static int copies_all;
static unsigned char *messages;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "remote twin: %s: %s\n", what, why);
    exit(1);
}

static void must(const char *what, ucs_status_t status) {
    if (status != UCS_OK) {
        fail(what, ucs_status_string(status));
    }
}

static void fill(unsigned char *bytes, uint64_t length) {
    uint64_t state = 0x9e3779b97f4a7c15;
    for (uint64_t at = 0; at + 8 <= length; at += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(bytes + at, &state, 8);
    }
}

static unsigned char *pages(uint64_t length) {
    void *bytes;
    if (posix_memalign(&bytes, 4096, length)) {
        fail("memory", "there is none");
    }
    return bytes;
}

/* Registers memory with UCX, which it may send from or receive into without another copy. */
static void add(void *bytes, uint64_t length) {
    ucp_mem_map_params_t parameters = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                       .address = bytes,
                                       .length = length};
    ucp_mem_h handle;
    must("ucp_mem_map", ucp_mem_map(context, &parameters, &handle));
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The chunks that the reader asked for, as numbers of a ring: asked, copied, sent. */
static struct request asked[SLOTS];
static atomic_uint asked_count, copied_count;
static unsigned sent_count, free_count;
static int is_done[SLOTS];
static unsigned char *slots;

static ucs_status_t on_request(void *none, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *how) {
    (void)none, (void)data, (void)length, (void)how;
    unsigned number = atomic_load_explicit(&asked_count, memory_order_relaxed);
    if (header_length != sizeof(struct request) || number - free_count >= SLOTS) {
        fail("a request", "it is malformed, or one too many");
    }
    struct request *one = &asked[number % SLOTS];
    memcpy(one, header, sizeof *one);
    if (one->length > CHUNK || one->offset > memory_bytes - one->length) {
        fail("a request", "it is out of bounds");
    }
    atomic_store_explicit(&asked_count, number + 1, memory_order_release);
    return UCS_OK;
}

static int copy_one(void) {
    unsigned number = atomic_load_explicit(&copied_count, memory_order_relaxed);
    if (number == atomic_load_explicit(&asked_count, memory_order_acquire)) {
        return 0;
    }
    struct request *one = &asked[number % SLOTS];
    memcpy(slots + (uint64_t)(number % SLOTS) * CHUNK, memory + one->offset, one->length);
    atomic_store_explicit(&copied_count, number + 1, memory_order_release);
    return 1;
}

static void *copy_all(void *none) {
    for (;;) {
        copy_one();
    }
    return none;
}

static void on_sent(void *request, ucs_status_t status, void *slot) {
    must("sending", status);
    *(int *)slot = 1;
    ucp_request_free(request);
}

static void send_one(void) {
    if (sent_count == atomic_load_explicit(&copied_count, memory_order_acquire)) {
        return;
    }
    unsigned slot = sent_count++ % SLOTS;
    is_done[slot] = 0;
    unsigned char *bytes = slots + (uint64_t)slot * CHUNK;
    if (copies_all) {
        bytes = memcpy(messages + (uint64_t)slot * CHUNK, bytes, asked[slot].length);
    }
    ucp_request_param_t parameters = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                      .cb.send = on_sent,
                                      .user_data = &is_done[slot]};
    void *request = ucp_am_send_nbx(peer, DATA, &asked[slot], sizeof asked[slot], bytes, asked[slot].length,
                                    &parameters);
    if (UCS_PTR_IS_ERR(request)) {
        must("ucp_am_send_nbx", UCS_PTR_STATUS(request));
    }
    is_done[slot] |= request == NULL;
}

/* The program ends when its input does, whatever UCX waits for. */
static void *end_with_input(void *none) {
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    _exit(0);
    return none;
}

static void serve(int by_thread) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_with_input, NULL) ||
        (by_thread && pthread_create(&thread, NULL, copy_all, NULL))) {
        fail("a thread", "it cannot be started");
    }
    for (;;) {
        ucp_worker_progress(worker);
        while (free_count != sent_count && is_done[free_count % SLOTS]) {
            free_count++;
        }
        if (!by_thread) {
            copy_one();
        }
        send_one();
    }
}

static uint64_t arrived;
/* What comes, by the message that it comes into; that of a chunk is free when as many others are under way as may be. */
static struct request coming[SLOTS];
static uint64_t came;

/* A chunk is there. */
static void arrive(struct request *one) {
    if (copies_all) {
        memcpy(memory + one->offset, messages + (uint64_t)(one - coming) * CHUNK, one->length);
        one->length = 0;
    }
    arrived++;
}

static void on_received(void *request, ucs_status_t status, size_t length, void *one) {
    (void)length;
    must("receiving", status);
    arrive(one);
    ucp_request_free(request);
}

static struct request *place_for(const struct request *one) {
    unsigned slot = came++ % SLOTS;
    while (copies_all && coming[slot].length) {
        slot = (slot + 1) % SLOTS;
    }
    coming[slot] = *one;
    return &coming[slot];
}

static ucs_status_t on_data(void *none, const void *header, size_t header_length, void *data, size_t length,
                            const ucp_am_recv_param_t *how) {
    (void)none;
    struct request one;
    if (header_length != sizeof one) {
        fail("data", "its header is malformed");
    }
    memcpy(&one, header, sizeof one);
    if (one.length != length || one.offset > memory_bytes - one.length) {
        fail("data", "it is not what was asked for");
    }
    if (!(how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(memory + one.offset, data, length);
        arrived++;
        return UCS_OK;
    }
    struct request *place = place_for(&one);
    unsigned char *bytes = copies_all ? messages + (uint64_t)(place - coming) * CHUNK : memory + one.offset;
    ucp_request_param_t parameters = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                      .cb.recv_am = on_received,
                                      .user_data = place};
    void *request = ucp_am_recv_data_nbx(worker, data, bytes, length, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
        must("ucp_am_recv_data_nbx", UCS_PTR_STATUS(request));
    }
    if (request == NULL) {
        arrive(place);
    }
    return UCS_INPROGRESS;
}

static void ask(uint64_t offset, uint64_t length) {
    struct request one = {.offset = offset, .length = length};
    ucp_request_param_t parameters = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER};
    /* The header is copied: nothing of it is on the stack when the request goes. */
    static struct request headers[SLOTS];
    static unsigned next;
    struct request *kept = &headers[next++ % SLOTS];
    *kept = one;
    void *request = ucp_am_send_nbx(peer, REQUEST, kept, sizeof *kept, NULL, 0, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
        must("ucp_am_send_nbx", UCS_PTR_STATUS(request));
    }
    if (request != NULL) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(worker);
        }
        ucp_request_free(request);
    }
}

static uint64_t read_all(uint64_t length, uint64_t count, uint64_t ahead) {
    uint64_t chunks = (length + CHUNK - 1) / CHUNK;
    uint64_t since = now();
    uint64_t next = 0;
    arrived = 0;
    while (arrived < chunks * count) {
        while (next < chunks * count && next - arrived < ahead) {
            uint64_t offset = next % chunks * CHUNK;
            ask(offset, length - offset < CHUNK ? length - offset : CHUNK);
            next++;
        }
        ucp_worker_progress(worker);
    }
    return now() - since;
}

static void take_commands(void) {
    unsigned char *expected = pages(memory_bytes);
    fill(expected, memory_bytes);
    memset(memory, 1, memory_bytes);
    uint64_t length, count, ahead;
    uint64_t compared = 0;
    while (scanf("%lu %lu %lu", &length, &count, &ahead) == 3) {
        if (length > memory_bytes || ahead < 1 || ahead > SLOTS) {
            fail("a command", "it is out of bounds");
        }
        uint64_t took = read_all(length, count, ahead);
        if (length > compared && memcmp(memory, expected, length)) {
            fail("reading", "other bytes came");
        }
        compared = length > compared ? length : compared;
        printf("%lu\n", took);
        fflush(stdout);
    }
}

static void set_handler(unsigned id, ucp_am_recv_callback_t function) {
    ucp_am_handler_param_t parameters = {.field_mask =
                                             UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                         .id = id,
                                         .cb = function};
    must("ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(worker, &parameters));
}

static void start_ucx(void) {
    ucp_params_t parameters = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    must("ucp_init", ucp_init(&parameters, NULL, &context));
    ucp_worker_params_t none = {.field_mask = 0};
    must("ucp_worker_create", ucp_worker_create(context, &none, &worker));
}

static void meet(void) {
    ucp_address_t *own;
    size_t length;
    must("ucp_worker_get_address", ucp_worker_get_address(worker, &own, &length));
    for (size_t at = 0; at < length; at++) {
        printf("%02x", ((unsigned char *)own)[at]);
    }
    printf("\n");
    fflush(stdout);
    static char line[2 * LONGEST_ADDRESS];
    static unsigned char address[LONGEST_ADDRESS];
    if (scanf("%131071s", line) != 1) {
        exit(0);
    }
    for (size_t at = 0; line[2 * at] && line[2 * at + 1]; at++) {
        unsigned byte;
        if (sscanf(line + 2 * at, "%2x", &byte) != 1) {
            fail("the address of the other process", "it is not hexadecimal");
        }
        address[at] = (unsigned char)byte;
    }
    ucp_ep_params_t parameters = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                  .address = (ucp_address_t *)address};
    must("ucp_ep_create", ucp_ep_create(worker, &parameters, &peer));
}

int main(int count, char **words) {
    if (count < 3) {
        fail("use", "remote serve|read BYTES [thread] [all]");
    }
    int serves = strcmp(words[1], "serve") == 0;
    int by_thread = 0;
    for (int word = 3; word < count; word++) {
        by_thread |= strcmp(words[word], "thread") == 0;
        copies_all |= strcmp(words[word], "all") == 0;
    }
    memory_bytes = strtoull(words[2], NULL, 10);
    memory = pages(memory_bytes);
    start_ucx();
    if (copies_all) {
        messages = pages((uint64_t)SLOTS * CHUNK);
        memset(messages, 1, (uint64_t)SLOTS * CHUNK);
        add(messages, (uint64_t)SLOTS * CHUNK);
    }
    if (serves) {
        fill(memory, memory_bytes);
        slots = pages((uint64_t)SLOTS * CHUNK);
        memset(slots, 1, (uint64_t)SLOTS * CHUNK);
        add(slots, (uint64_t)SLOTS * CHUNK);
        set_handler(REQUEST, on_request);
    } else {
        add(memory, memory_bytes);
        set_handler(DATA, on_data);
    }
    meet();
    if (serves) {
        serve(by_thread);
    } else {
        take_commands();
    }
    return 0;
}

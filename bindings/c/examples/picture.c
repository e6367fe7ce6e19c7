/* Turns a picture by a quarter and copies a logo over it, in a program with an event loop: poll(2) on the eventfd. */
#include <memferry.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        mf_error error = (call);                                                                                      \
        if (error != MF_ERROR_NONE) {                                                                                 \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)error, mf_last_message());                                    \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

enum { WIDTH = 640, HEIGHT = 480, KEY = 0xff00ff };

static uint32_t picture[HEIGHT][WIDTH], turned[WIDTH][HEIGHT], logo[64][64];

/* Takes `count` completions and sleeps on the descriptor between them; 0 when all transfers succeeded. */
static int take(mf_queue queue, int descriptor, int count) {
    mf_completion done;
    while (count > 0) {
        mf_error polled = mf_poll(queue, &done);
        if (polled == MF_ERROR_NOTHING) {
            int ready;
            CHECK(mf_arm(queue, &ready));
            if (!ready && descriptor >= 0) {
                struct pollfd wanted = {descriptor, POLLIN, 0};
                uint64_t signals;
                if (poll(&wanted, 1, 10000) != 1 || read(descriptor, &signals, sizeof signals) < 0)
                    return 1;
            }
            continue;
        }
        CHECK(polled); /* an error when the transfer failed */
        count--;
    }
    return 0;
}

int main(void) {
    mf_client client;
    mf_frame from, to, mark;
    mf_queue queue;
    mf_terms after = MF_TERMS_INIT;
    mf_image upright = {0, WIDTH * 4, WIDTH, HEIGHT, 4, 0};
    mf_image on_its_side = {0, HEIGHT * 4, HEIGHT, WIDTH, 4, 0};
    mf_image small = {0, 64 * 4, 64, 64, 4, 0};
    mf_image corner = {0, HEIGHT * 4, 64, 64, 4, 0}; /* the first 64 pixels of the first 64 rows */
    int descriptor = -1;

    for (uint32_t y = 0; y < HEIGHT; y++)
        for (uint32_t x = 0; x < WIDTH; x++)
            picture[y][x] = y << 12 | x;
    for (int i = 0; i < 64 * 64; i++)
        logo[i / 64][i % 64] = i % 2 ? KEY : 0x00aa00;

    CHECK(mf_embed(&client));
    /* Plain memory of this process, which transfers may use until the frames are freed. */
    CHECK(mf_frame_lend(client, picture, sizeof picture, 1, &from));
    CHECK(mf_frame_lend(client, turned, sizeof turned, 0, &to));
    CHECK(mf_frame_lend(client, logo, sizeof logo, 1, &mark));
    CHECK(mf_queue_open(client, 8, &queue));
    if (mf_eventfd(queue, &descriptor) != MF_ERROR_NONE)
        printf("no eventfd here, so this polls: %s\n", mf_last_message());

    CHECK(mf_submit_turn(queue, mf_all(from), &upright, MF_TURN_ROTATE90, mf_all(to), &on_its_side, 0, 0, NULL, NULL));
    after.flags = MF_FLAG_FENCED; /* the logo is copied when the turn has ended */
    CHECK(mf_submit_turn(queue, mf_all(mark), &small, MF_TURN_UPRIGHT, mf_all(to), &corner, 1, KEY, &after, NULL));
    if (take(queue, descriptor, 2) != 0)
        return 1;

    CHECK(mf_queue_close(queue));
    CHECK(mf_frame_free(from));
    CHECK(mf_frame_free(to));
    CHECK(mf_frame_free(mark));
    CHECK(mf_disconnect(client));
    if (descriptor >= 0)
        close(descriptor);

    /* A quarter turn clockwise: the first row is the first column, read from the bottom. */
    for (uint32_t y = 0; y < WIDTH; y++)
        for (uint32_t x = 0; x < HEIGHT; x++) {
            int marked = y < 64 && x < 64 && x % 2 == 0;
            if (turned[y][x] != (marked ? 0x00aa00 : picture[HEIGHT - 1 - x][y])) {
                fprintf(stderr, "pixel %u, %u is wrong\n", (unsigned)x, (unsigned)y);
                return 1;
            }
        }
    printf("turned and marked\n");
    return 0;
}

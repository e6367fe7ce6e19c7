/* Moves a mebibyte while this thread computes.
 *
 *     cc copy.c $(pkg-config --cflags --libs memferry)
 *
 * The argument is the path of a service's socket; without one the service is in this process. */
#include <memferry.h>
#include <stdio.h>
#include <string.h>

/* Ends main with a message when a call fails. */
#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        mf_error error = (call);                                                                                      \
        if (error != MF_ERROR_NONE) {                                                                                 \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)error, mf_last_message());                                    \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

int main(int argc, char **argv) {
    mf_client client;
    mf_frame source, destination;
    mf_queue queue;
    mf_ticket ticket;
    mf_completion done;
    void *bytes;
    unsigned sum = 0;

    CHECK(mf_check_version(MF_VERSION));
    CHECK(argc > 1 ? mf_connect(argv[1], &client) : mf_embed(&client));
    CHECK(mf_frame_allocate(client, 1 << 20, &source));
    CHECK(mf_frame_allocate(client, 1 << 20, &destination));
    CHECK(mf_queue_open(client, 64, &queue));

    CHECK(mf_frame_map(source, &bytes, NULL));
    strcpy(bytes, "moved without this thread");
    CHECK(mf_submit_copy(queue, mf_all(source), mf_all(destination), NULL, &ticket));
    for (unsigned i = 0; i < 1000; i++) /* compute meanwhile */
        sum += i;
    CHECK(mf_wait_range(queue, ticket, 0, 4096, MF_FOREVER, NULL)); /* the first page is in place */
    CHECK(mf_wait(queue, ticket, MF_FOREVER, &done));               /* an error when the copy failed */

    CHECK(mf_frame_map(destination, &bytes, NULL));
    printf("%s: %llu bytes, and %u\n", (char *)bytes, (unsigned long long)done.bytes_done, sum);

    CHECK(mf_queue_close(queue));
    CHECK(mf_frame_free(source));
    CHECK(mf_frame_free(destination));
    CHECK(mf_disconnect(client));
    return 0;
}

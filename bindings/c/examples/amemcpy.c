/* Asynchronous copies of plain memory: a message goes through two buffers, is looked at where it arrives, and the buffer
 * between is never filled.
 *
 *     cc amemcpy.c $(pkg-config --cflags --libs memferry) */
#include <memferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4 << 20, HEADER = 64 };

/* Ends main when something went wrong, with the words for it. */
#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        mf_error error = (call);                                                                                      \
        if (error != MF_ERROR_NONE) {                                                                                 \
            fprintf(stderr, "%s: %d: %s\n", #call, (int)error, mf_last_message());                                    \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

int main(void) {
    char *received = malloc(BYTES), *between = malloc(BYTES), *kept = malloc(BYTES);
    mf_client client;
    mf_copier copier;
    unsigned sum = 0;

    if (!received || !between || !kept)
        return 1;
    memset(received, 'b', BYTES);
    strcpy(received, "a header");

    CHECK(mf_check_version(MF_VERSION));
    CHECK(mf_embed(&client));
    CHECK(mf_copier_open(client, &copier));

    CHECK(mf_amemcpy(copier, between, received, BYTES)); /* returns at once */
    CHECK(mf_amemcpy(copier, kept, between, BYTES));     /* copied from `received`, where the bytes are */
    CHECK(mf_cforget(copier, between, BYTES));           /* so this need not be filled any more */
    free(between);

    CHECK(mf_csync(copier, kept, HEADER)); /* the header is there */
    printf("%s", kept);
    for (unsigned i = 0; i < 1000; i++) /* computing meanwhile */
        sum += i;
    CHECK(mf_csync_to_write(copier, received, BYTES)); /* before the source changes, as its copy was forgotten */
    memset(received, 'c', BYTES);
    CHECK(mf_csync(copier, kept, BYTES));
    printf(", its last byte %c, and %u\n", kept[BYTES - 1], sum);

    CHECK(mf_copier_close(copier));
    CHECK(mf_disconnect(client));
    free(received);
    free(kept);
    return 0;
}

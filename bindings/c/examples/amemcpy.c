/* Asynchronous copies of plain memory: a message is copied through two buffers and read from the last one. The buffer between
 * is never filled.
 *
 *     cc amemcpy.c $(pkg-config --cflags --libs memferry) */
#include <memferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4 << 20, HEADER = 64 };

/* Ends main with a message when a call fails. */
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
    CHECK(mf_amemcpy(copier, kept, between, BYTES));     /* copies from `received`, where the bytes still are */
    CHECK(mf_cforget(copier, between, BYTES));           /* so `between` need not be filled */
    free(between);

    CHECK(mf_csync(copier, kept, HEADER)); /* the header is in place */
    printf("%s", kept);
    for (unsigned i = 0; i < 1000; i++) /* compute meanwhile */
        sum += i;
    CHECK(mf_csync_to_write(copier, received, BYTES)); /* the source changes, and one copy of it was forgotten */
    memset(received, 'c', BYTES);
    CHECK(mf_csync(copier, kept, BYTES));
    printf(", its last byte %c, and %u\n", kept[BYTES - 1], sum);

    CHECK(mf_copier_close(copier));
    CHECK(mf_disconnect(client));
    free(received);
    free(kept);
    return 0;
}

/* A program that sets MEMFERRY_KERNELS itself, then makes its first long copy: the preloaded library must not look at the
 * environment any more, which other threads may be changing. Prints "ok" if it does not. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;
static volatile int started, looks;

/* Takes the C library's place for the preloaded library too. */
char *getenv(const char *name) {
    looks += started;
    size_t length = strlen(name);
    for (char **each = environ; each && *each; each++)
        if (!strncmp(*each, name, length) && (*each)[length] == '=')
            return *each + length + 1;
    return NULL;
}

int main(void) {
    size_t length = 512u << 20;
    char *from = calloc(1, length), *to = malloc(length);
    if (!from || !to || setenv("MEMFERRY_KERNELS", "portable", 1))
        return 1;
    from[length - 1] = 7;
    started = 1;
    memcpy(to, from, length);
    started = 0;
    if (to[length - 1] != 7 || looks)
        return fprintf(stderr, "%d looks at the environment\n", looks), 1;
    puts("ok");
    return 0;
}

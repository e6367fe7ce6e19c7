/* A library whose constructor runs before the preloaded library's: the replaced functions must work by then. Compiled and
 * preloaded by tests/programs.rs; prints "early" if all is correct. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void) {
    char name[16] = "", text[] = "abcdef", all[1 << 17];
    int correct = syscall(SYS_getpid) == getpid();
    errno = 0;
    correct &= syscall(SYS_close, -1) == -1 && errno == EBADF;
    correct &= prctl(PR_SET_NAME, "early", 0, 0, 0) == 0 && prctl(PR_GET_NAME, name, 0, 0, 0) == 0 && !strcmp(name, "early");
    errno = 0;
    correct &= prctl(-1, 0, 0, 0, 0) == -1 && errno == EINVAL;
    correct &= memmove(text + 2, text, 4) == text + 2 && !strcmp(text, "ababcd");
    correct &= memset(all, 7, sizeof all) == all && all[0] == 7 && all[sizeof all - 1] == 7;
    correct &= mempcpy(all + 3, text, 6) == all + 9 && all[2] == 7 && all[8] == 'd' && all[9] == 7;
    if (correct)
        puts("early");
}

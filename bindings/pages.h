/* Pages of files, for the bindings that move a program's memory into frames. Needs _GNU_SOURCE before the first header.
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#ifndef MEMFERRY_PAGES_H
#define MEMFERRY_PAGES_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/types.h>

/* Allocates the first `length` bytes of a file; 0, or -1 with errno. A signal ends fallocate, which frees again what it had before on tmpfs
 * of older kernels, so it is called for a few pages at a time. */
static inline int allocate_pages(int descriptor, size_t length) {
    const size_t most = 4 << 20;

    for (size_t at = 0; at < length; at += most) {
        size_t piece = length - at < most ? length - at : most;

        while (fallocate(descriptor, 0, (off_t)at, (off_t)piece) != 0)
            if (errno != EINTR)
                return -1;
    }
    return 0;
}

#endif

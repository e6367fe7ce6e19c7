/* Closes what another user may have made slow to close.
 *
 *     socket of another user, shut down ─┐
 *     descriptor that it sent ───────────┼─► list ─► thread ─► close()
 *     listener, shut down ───────────────┘
 *
 * Any local user may connect to an endpoint and put descriptors into the socket before this process sees it. Closing the socket closes
 * them, and that takes as long as they like: a TCP socket lingers, a file system in user space may never answer. So a thread does it,
 * which exists while there is something to close. Descriptors that wait are bounded: with MOST_CLOSING of them, no connection is made
 * until one is closed. SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider.h"

/* A program has few descriptors: 1024 by default. */
#define MOST_CLOSING 64
/* Connections that nobody accepted, of an endpoint that is closed: as many hear of it at a time. */
#define MOST_UNACCEPTED 64

struct closing {
    struct link link;
    int socket;
    int received;
    bool listens;
};

/* Guarded by the lock of the process. */
static struct {
    struct link waiting;
    unsigned count;
    bool has_thread;
} closer = {.waiting = {&closer.waiting, &closer.waiting}};

/* Ends connections that were not accepted, also where a forked child has the listener. All are shut down before one is closed: a peer that
 * means well should not wait for the one before it. */
static void end_unaccepted(int listener) {
    int sockets[MOST_UNACCEPTED], count;

    do {
        for (count = 0; count < MOST_UNACCEPTED; count++) {
            sockets[count] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (sockets[count] < 0)
                break;
            (void)shutdown(sockets[count], SHUT_RDWR);
        }
        for (int i = 0; i < count; i++)
            close(sockets[i]);
    } while (count == MOST_UNACCEPTED);
}

static void *close_all(void *nothing) {
    pthread_mutex_lock(&process.lock);
    while (!link_is_empty(&closer.waiting)) {
        struct closing *closing = CONTAINER(closer.waiting.next, struct closing, link);

        link_remove(&closing->link);
        pthread_mutex_unlock(&process.lock);
        if (closing->listens)
            end_unaccepted(closing->socket);
        close(closing->socket);
        if (closing->received >= 0)
            close(closing->received);
        free(closing);
        pthread_mutex_lock(&process.lock);
        closer.count--;
    }
    closer.has_thread = false;
    pthread_mutex_unlock(&process.lock);
    return nothing;
}

/* Without a thread, descriptors wait until the next try. */
static void start(void) {
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t thread;

    if (closer.has_thread || link_is_empty(&closer.waiting) || pthread_attr_init(&attributes) != 0)
        return;
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* The program's handlers run in its own threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    closer.has_thread = pthread_create(&thread, &attributes, close_all, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
}

struct closing *closing_new(bool listens) {
    struct closing *closing = calloc(1, sizeof(*closing));

    if (closing)
        closing->listens = listens;
    return closing;
}

bool closer_has_room(void) {
    start();
    return closer.count < MOST_CLOSING;
}

void closer_add(struct closing *closing, int socket, int received) {
    closing->socket = socket;
    closing->received = received;
    /* What its parent may still accept, a forked child leaves alone. */
    closing->listens = closing->listens && !process.is_child;
    link_append(&closer.waiting, &closing->link);
    closer.count++;
    start();
}

void closer_in_child(bool has_lock) {
    closer.has_thread = false;
    closer.count = 0;
    if (!has_lock)
        link_init(&closer.waiting);
    FOR_EACH(item, following, &closer.waiting) { closer.count++; }
}

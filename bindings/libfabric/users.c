/* Which users may connect, and how much of this process other users may take: connections, and bytes of messages that wait here until
 * the program receives them. Other processes of this user have no such limits.
 *
 *     FI_MEMFERRY_USER_BYTES of a user: one half by any connections of that user. Beyond it, each connection still has an equal part of
 *     the other half, so that none is stopped by the others. All other users together have as much as SHARES users.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

#define USER_CONNECTIONS 64
#define USER_BYTES ((size_t)64 << 20)
#define SHARES 16
/* Of all other users, whatever the program allows: an endpoint takes twice as many. */
#define MOST_CONNECTIONS_OF_OTHERS 2048
/* What a short message counts: each costs time too, in every search for a message. */
#define LEAST_BYTES 4096

struct account {
    struct link link;
    uid_t user;
    unsigned connections;
    size_t bytes;
};

static struct {
    struct link accounts;
    size_t connections;
    size_t bytes;
    /* What the program allows. */
    size_t most_connections;
    size_t most_bytes;
    /* Bytes of each connection, whatever the others have. */
    size_t share;
} others = {.accounts = {&others.accounts, &others.accounts}};

bool user_is_welcome(uid_t user) {
    char *users = NULL, *end;

    if (user == geteuid())
        return true;
    (void)fi_param_get_str(&memferry_provider, "users", &users);
    if (!users)
        return false;
    if (strcmp(users, "any") == 0)
        return true;
    for (const char *at = users; *at; at = *end ? end + 1 : end) {
        unsigned long one = strtoul(at, &end, 10);

        if (end == at || (*end && *end != ','))
            return false;
        if (one == user)
            return true;
    }
    return false;
}

static void read_limits(void) {
    others.most_connections = USER_CONNECTIONS;
    others.most_bytes = USER_BYTES;
    (void)fi_param_get_size_t(&memferry_provider, "user_connections", &others.most_connections);
    (void)fi_param_get_size_t(&memferry_provider, "user_bytes", &others.most_bytes);
    others.share = others.most_connections > 0 ? others.most_bytes / 2 / others.most_connections : 0;
}

static struct account *account_of(uid_t user) {
    struct account *account;

    FOR_EACH(item, following, &others.accounts) {
        account = CONTAINER(item, struct account, link);
        if (account->user == user)
            return account;
    }
    account = calloc(1, sizeof(*account));
    if (account) {
        account->user = user;
        link_append(&others.accounts, &account->link);
    }
    return account;
}

static bool may_connect(const struct account *account) {
    return account->connections < others.most_connections && others.connections < MOST_CONNECTIONS_OF_OTHERS &&
           others.connections / SHARES < others.most_connections;
}

static void free_if_unused(struct account *account) {
    if (account->connections > 0)
        return;
    link_remove(&account->link);
    free(account);
}

struct account *account_open(uid_t user) {
    struct account *account = account_of(user);

    read_limits();
    if (account && may_connect(account)) {
        account->connections++;
        others.connections++;
        return account;
    }
    if (account) {
        WARN("user %d has %u connections, and all other users %zu: see FI_MEMFERRY_USER_CONNECTIONS\n", (int)user, account->connections,
             others.connections);
        free_if_unused(account);
    }
    return NULL;
}

void account_close(struct account *account) {
    account->connections--;
    others.connections--;
    free_if_unused(account);
}

bool account_has_room(const struct connection *connection) {
    size_t half = others.most_bytes / 2;

    return connection->unexpected_bytes < others.share ||
           (connection->account->bytes < half && others.bytes / SHARES < half);
}

static size_t counted(const struct connection *connection, size_t length) {
    return connection->account && length < LEAST_BYTES ? LEAST_BYTES : length;
}

void account_keep(struct connection *connection, size_t length) {
    length = counted(connection, length);
    connection->unexpected_bytes += length;
    if (connection->account) {
        connection->account->bytes += length;
        others.bytes += length;
    }
}

void account_drop(struct connection *connection, size_t length) {
    length = counted(connection, length);
    connection->unexpected_bytes -= length;
    if (connection->account) {
        connection->account->bytes -= length;
        others.bytes -= length;
    }
}

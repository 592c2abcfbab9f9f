/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading ahead: while a step is computed from one buffer, a thread fills the other with the next one. What
 * it read is kept only if it is what is asked for.
 */
#include <pthread.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "data/data.h"

struct ahead {
    struct feed feed;
    int64_t step_words; /* of a buffer */
    int32_t *rows[2];
    int spare; /* the buffer that the thread owns while it is busy */
    pthread_t thread;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int busy, stop;
    int64_t cursor; /* of what is, or is being, read; -1 = nothing */
    int st;
    char *error;
};

static int fill(const struct ahead *a, int64_t cursor, int32_t *rows)
{
    int64_t accum = feed_accum(&a->feed), row = a->feed.micro * a->feed.seq;
    for (int64_t m = 0; m < accum; m++)
        SHERD_TRY(feed_fill(&a->feed, cursor, m, rows + 2 * m * row, rows + (2 * m + 1) * row));
    return SHERD_OK;
}

static void *run(void *arg)
{
    struct ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->busy && !a->stop)
            pthread_cond_wait(&a->change, &a->lock);
        if (a->stop)
            break;
        int64_t cursor = a->cursor;
        int32_t *rows = a->rows[a->spare];
        pthread_mutex_unlock(&a->lock);
        int st = fill(a, cursor, rows);
        char *error = st == SHERD_OK ? NULL : mem_strdup(sherd_error());
        pthread_mutex_lock(&a->lock);
        a->st = st;
        mem_free(a->error);
        a->error = error;
        a->busy = 0;
        pthread_cond_broadcast(&a->change);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int ahead_create(struct ahead **out, const struct feed *feed)
{
    int st = SHERD_OK;
    struct ahead *a = mem_zalloc(1, sizeof(*a));
    *out = NULL;
    if (!a)
        return SHERD_ENOMEM;
    a->feed = *feed;
    a->cursor = -1;
    a->step_words = 2 * feed_accum(feed) * feed->micro * feed->seq;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->change, NULL);
    for (int i = 0; i < 2; i++)
        if (!(a->rows[i] = mem_zalloc((size_t)a->step_words, sizeof(int32_t))))
            st = SHERD_ENOMEM;
    if (st == SHERD_OK) {
        st = thread_start(&a->thread, run, a, "data: the thread that reads ahead");
        a->started = st == SHERD_OK;
    }
    if (st != SHERD_OK) {
        ahead_destroy(a);
        return st;
    }
    *out = a;
    return SHERD_OK;
}

void ahead_destroy(struct ahead *a)
{
    if (!a)
        return;
    if (a->started) {
        pthread_mutex_lock(&a->lock);
        a->stop = 1;
        pthread_cond_broadcast(&a->change);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    pthread_cond_destroy(&a->change);
    pthread_mutex_destroy(&a->lock);
    mem_free(a->rows[0]);
    mem_free(a->rows[1]);
    mem_free(a->error);
    mem_free(a);
}

/* With the lock, and the thread at rest. */
static void ask(struct ahead *a, int64_t cursor)
{
    a->cursor = cursor;
    a->busy = 1;
    pthread_cond_broadcast(&a->change);
}

static void settle(struct ahead *a)
{
    while (a->busy)
        pthread_cond_wait(&a->change, &a->lock);
}

int ahead_take(struct ahead *a, int64_t cursor, const int32_t **rows)
{
    int st;
    pthread_mutex_lock(&a->lock);
    settle(a);
    if (a->cursor != cursor) {
        ask(a, cursor);
        settle(a);
    }
    st = a->st;
    if (st == SHERD_OK) {
        *rows = a->rows[a->spare];
        a->spare = !a->spare;
        ask(a, cursor + a->feed.global);
    } else {
        st = a->error ? status_adopt(st, a->error) : st;
        a->cursor = -1;
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

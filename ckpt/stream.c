/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The thread that writes: see ckpt/stream.h. It takes full slabs in order, and never holds back a written one
 * while somebody could be waiting for it.
 */
#include "ckpt/stream.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "base/thread.h"
#include "ckpt/format.h"

#define WRITES_MOST 8 /* at a time */

struct stream {
    struct sherd_comm *comm; /* told of every call, may be NULL */
    struct write_queue *writes;
    struct slabs slabs;
    struct fill *fill;
    pthread_t thread;
    int has_thread;
    /* under the lock of the slabs */
    int busy, stop;
    int (*fn)(void *ctx);
    void *ctx;
    int status;
    char text[1024];
    /* of the thread, during a save */
    const char *dir;
    uint64_t block;
    struct stream_file *files;
    int n_files, writing; /* writing: ops under way */
};

static void keep_failure(struct stream *s, int status)
{
    if (status == SHERD_OK || s->status != SHERD_OK)
        return;
    s->status = status;
    snprintf(s->text, sizeof(s->text), "%s", sherd_error());
}

/* ---- the thread ---- */

/* Looks through the pieces that lie in a slab. */
static void look_through(struct stream_file *f, const struct slab *slab)
{
    uint64_t slab_end = slab->offset + slab->bytes;
    while (f->piece < f->list->n && !f->nonfinite) {
        const struct st_item *item = &f->list->items[f->piece];
        uint64_t begin = f->piece_begin, end = begin + f->list->pieces[f->piece].bytes;
        uint64_t from = MAX(begin, slab->offset), to = MIN(end, slab_end);
        if (from < to && !st_finite(slab->data + (from - slab->offset), (size_t)(to - from), item->type))
            f->nonfinite = item->name;
        if (end > slab_end)
            break;
        f->piece++;
        f->piece_begin = end;
    }
}

static int open_file(struct stream_file *f)
{
    f->nonfinite = NULL;
    f->piece = 0;
    f->piece_begin = f->list->header_bytes;
    f->full = f->writing = 0;
    SHERD_TRY(sum_create(&f->summing));
    SHERD_TRY(file_open_direct(&f->fd, &f->direct, f->path));
    f->open = 1;
    return file_reserve(f->fd, f->list->file_bytes, f->path);
}

static void close_file(struct stream *s, struct stream_file *f)
{
    if (f->open)
        keep_failure(s, file_close(f->fd, f->path));
    f->open = 0;
    sum_destroy(f->summing);
    f->summing = NULL;
}

/* All of it has been written: sees it to the disk, while others are being written. */
static void end_file(struct stream *s, struct stream_file *f)
{
    if (s->status == SHERD_OK && f->direct)
        keep_failure(s, file_cut(f->fd, f->list->file_bytes, f->path));
    if (s->status == SHERD_OK)
        keep_failure(s, file_sync(f->fd, f->path));
    close_file(s, f);
}

/* Waits for one write; its slab is free again. */
static void take_written(struct stream *s)
{
    struct write_op *op;
    int st = write_queue_take(s->writes, &op);
    if (!op) { /* the queue is of no use any more; its slabs are given up with it */
        keep_failure(s, st);
        s->writing = 0;
        pthread_mutex_lock(&s->slabs.lock);
        s->slabs.broken = 1;
        pthread_cond_broadcast(&s->slabs.changed);
        pthread_mutex_unlock(&s->slabs.lock);
        return;
    }
    struct slab *slab = (struct slab *)((char *)op - offsetof(struct slab, op));
    struct stream_file *f = slab->file;
    s->writing--;
    f->writing--;
    if (s->comm)
        comm_beat(s->comm);
    keep_failure(s, st);
    slabs_give_back(&s->slabs, slab);
    if (f->full && !f->writing)
        end_file(s, f);
}

static void put_slab(struct stream *s, struct slab *slab)
{
    struct stream_file *f = slab->file;
    look_through(f, slab);
    for (size_t i = 0; i < slab->bytes; i += s->block)
        f->blocks[(slab->offset + i) / s->block] =
            sum_hash64(slab->data + i, MIN(slab->bytes - i, (size_t)s->block), 0);
    sum_add(f->summing, slab->data, slab->bytes);
    size_t bytes = slab->bytes;
    if (f->direct) {
        bytes = (size_t)round_up((int64_t)bytes, FILE_DIRECT_ALIGN);
        memset(slab->data + slab->bytes, 0, bytes - slab->bytes);
    }
    f->full = slab->offset + slab->bytes == f->list->file_bytes;
    if (f->full)
        sum_text(f->summing, f->sum);
    slab->op = (struct write_op){ .fd = f->fd,
        .path = f->path,
        .data = slab->data,
        .bytes = bytes,
        .offset = slab->offset,
        .align = f->direct ? FILE_DIRECT_ALIGN : 1 };
    write_queue_put(s->writes, &slab->op);
    s->writing++;
    f->writing++;
}

/* After a failure slabs only go round. */
static void handle(struct stream *s, struct slab *slab)
{
    int st = sherd_event_sync(slab->copied);
    if (st == SHERD_OK && s->status == SHERD_OK && slab->offset == 0)
        st = open_file(slab->file);
    keep_failure(s, st);
    while (s->writing >= WRITES_MOST)
        take_written(s);
    if (s->status == SHERD_OK)
        put_slab(s, slab);
    else
        slabs_give_back(&s->slabs, slab);
}

/* Files that are still open have failed. */
static void end_save(struct stream *s)
{
    for (int i = 0; i < s->n_files; i++)
        close_file(s, &s->files[i]);
    if (s->status == SHERD_OK)
        keep_failure(s, file_sync_dir(s->dir));
}

/* One thing to do; the lock is held, and let go meanwhile. 0: nothing. */
static int work(struct stream *s)
{
    struct slabs *slabs = &s->slabs;
    struct slab *slab = slabs->full;
    if (slab) {
        slabs->full = slab->next;
        if (!slabs->full)
            slabs->full_end = &slabs->full;
    } else if (!s->busy || (!s->writing && !s->fn && slabs->filling)) {
        return 0;
    }
    int (*fn)(void *) = s->fn, over = !slab && !s->writing && !slabs->filling;
    pthread_mutex_unlock(&slabs->lock);
    if (slab)
        handle(s, slab);
    else if (s->writing)
        take_written(s);
    else if (fn)
        keep_failure(s, fn(s->ctx));
    else
        end_save(s);
    pthread_mutex_lock(&slabs->lock);
    if (over) {
        s->busy = 0;
        s->fn = NULL;
        pthread_cond_broadcast(&slabs->changed);
    }
    return 1;
}

static void *serve(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->slabs.lock);
    for (;;) {
        if (s->comm)
            comm_beat_with_files(s->comm);
        if (work(s))
            continue;
        if (s->stop)
            break;
        pthread_cond_wait(&s->slabs.more, &s->slabs.lock);
    }
    pthread_mutex_unlock(&s->slabs.lock);
    return NULL;
}

/* ---- the caller ---- */

int stream_create(struct stream **out, struct sherd_device *dev, uint64_t bytes, enum write_kind kind)
{
    int st = SHERD_OK;
    struct stream *s = mem_zalloc(1, sizeof(*s));
    if (!s)
        return SHERD_ENOMEM;
    SHERD_TRY_OUT(slabs_init(&s->slabs, dev, bytes));
    SHERD_TRY_OUT(write_queue_create(&s->writes, WRITES_MOST, kind));
    SHERD_TRY_OUT(fill_create(&s->fill, &s->slabs));
    SHERD_TRY_OUT(thread_start(&s->thread, serve, s, "the thread that saves"));
    s->has_thread = 1;
out:
    if (st != SHERD_OK) {
        stream_destroy(s);
        return st;
    }
    *out = s;
    return SHERD_OK;
}

void stream_destroy(struct stream *s)
{
    if (!s)
        return;
    fill_destroy(s->fill); /* first: it waits for slabs that the other thread gives back */
    if (s->has_thread) {
        pthread_mutex_lock(&s->slabs.lock);
        s->stop = 1;
        pthread_cond_signal(&s->slabs.more);
        pthread_mutex_unlock(&s->slabs.lock);
        pthread_join(s->thread, NULL);
    }
    write_queue_destroy(s->writes);
    slabs_finish(&s->slabs);
    mem_free(s);
}

void stream_tell(struct stream *s, struct sherd_comm *comm)
{
    pthread_mutex_lock(&s->slabs.lock);
    s->comm = comm;
    pthread_mutex_unlock(&s->slabs.lock);
}

uint64_t stream_memory(const struct stream *s)
{
    return (uint64_t)s->slabs.n * CKPT_SLAB_BYTES;
}

struct fill *stream_fill(const struct stream *s)
{
    return s->fill;
}

void stream_start(
    struct stream *s, struct stream_file *files, int n, int n_units, uint64_t block, const char *dir)
{
    pthread_mutex_lock(&s->slabs.lock);
    s->status = SHERD_OK;
    s->busy = 1;
    s->slabs.filling = 1;
    s->files = files;
    s->n_files = n;
    s->block = block;
    s->dir = dir;
    pthread_mutex_unlock(&s->slabs.lock);
    fill_start(s->fill, files, n, n_units);
}

void stream_run(struct stream *s, int (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&s->slabs.lock);
    s->status = SHERD_OK;
    s->busy = 1;
    s->fn = fn;
    s->ctx = ctx;
    pthread_cond_signal(&s->slabs.more);
    pthread_mutex_unlock(&s->slabs.lock);
}

int stream_busy(struct stream *s)
{
    pthread_mutex_lock(&s->slabs.lock);
    int busy = s->busy;
    pthread_mutex_unlock(&s->slabs.lock);
    return busy;
}

int stream_wait(struct stream *s)
{
    pthread_mutex_lock(&s->slabs.lock);
    while (s->busy)
        pthread_cond_wait(&s->slabs.changed, &s->slabs.lock);
    int st = s->status == SHERD_OK ? SHERD_OK : status_adopt(s->status, s->text);
    pthread_mutex_unlock(&s->slabs.lock);
    return st == SHERD_OK ? fill_status(s->fill) : st;
}

const char *stream_writer(const struct stream *s)
{
    return write_queue_name(s->writes);
}

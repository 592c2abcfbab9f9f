/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Slabs between a caller and a thread: see ckpt/stream.h. A slab is free, being filled, full (in order), or
 * being written; the thread never holds back a written one while somebody could be waiting for it.
 */
#include "ckpt/stream.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/file.h"
#include "base/status.h"
#include "base/thread.h"
#include "ckpt/format.h"

#define SLABS_LEAST 4
#define WRITES_MOST 8 /* at a time */

struct slab {
    char *data;
    struct sherd_event *copied;
    struct write_op op;
    struct stream_file *file;
    uint64_t offset;
    size_t bytes;
    struct slab *next;
};

struct stream {
    struct sherd_device *dev;
    struct sherd_comm *comm;   /* told of every call, may be NULL */
    struct sherd_queue *queue; /* carries the copies */
    struct sherd_event *taken;
    struct write_queue *writes;
    void *memory;
    struct slab *slabs;
    int n_slabs;
    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t more, changed; /* for the thread; for the caller */
    struct slab *free, *full, **full_end;
    int filling, busy, stop; /* filling: more slabs may come */
    int broken;              /* written slabs do not come back */
    int fill_status;         /* of the caller's part, and its text */
    char fill_text[1024];
    int (*fn)(void *ctx);
    void *ctx;
    int status;
    char text[1024];
    /* of the thread, during a save */
    const char *dir;
    uint64_t block;
    struct stream_file *file; /* open */
    int fd, direct, writing;  /* writing: ops under way */
    int past;                 /* the last file went past the page cache to its end */
    struct sum *sum;
};

static void keep_failure(struct stream *s, int status)
{
    if (status == SHERD_OK || s->status != SHERD_OK)
        return;
    s->status = status;
    snprintf(s->text, sizeof(s->text), "%s", sherd_error());
}

/* ---- the thread ---- */

static int all_finite(const char *data, size_t bytes, enum sherd_dtype type)
{
    uint32_t bad = 0;
    if (type == SHERD_F32) {
        const uint32_t *w = (const uint32_t *)data;
        for (size_t i = 0; i < bytes / sizeof(*w); i++)
            bad |= (w[i] & 0x7f800000u) == 0x7f800000u;
    } else {
        const uint16_t *h = (const uint16_t *)data;
        uint16_t exponent = type == SHERD_BF16 ? 0x7f80 : 0x7c00;
        for (size_t i = 0; i < bytes / sizeof(*h); i++)
            bad |= (h[i] & exponent) == exponent;
    }
    return !bad;
}

/* Looks through the pieces that lie in a slab. */
static void look_through(struct stream_file *f, const struct slab *slab)
{
    uint64_t slab_end = slab->offset + slab->bytes;
    while (f->piece < f->list->n && !f->nonfinite) {
        const struct st_item *item = &f->list->items[f->piece];
        uint64_t begin = f->piece_begin, end = begin + f->list->pieces[f->piece].bytes;
        uint64_t from = MAX(begin, slab->offset), to = MIN(end, slab_end);
        if (from < to && !all_finite(slab->data + (from - slab->offset), (size_t)(to - from), item->type))
            f->nonfinite = item->name;
        if (end > slab_end)
            break;
        f->piece++;
        f->piece_begin = end;
    }
}

static int open_file(struct stream *s, struct stream_file *f)
{
    SHERD_TRY(sum_create(&s->sum));
    SHERD_TRY(file_open_direct(&s->fd, &s->direct, f->path));
    s->file = f;
    f->nonfinite = NULL;
    f->piece = 0;
    f->piece_begin = f->list->header_bytes;
    return file_reserve(s->fd, f->list->file_bytes, f->path);
}

static void close_file(struct stream *s)
{
    if (s->fd >= 0)
        keep_failure(s, file_close(s->fd, s->file->path));
    s->fd = -1;
    s->file = NULL;
    sum_destroy(s->sum);
    s->sum = NULL;
}

/* Waits for one write; its slab is free again. */
static void take_written(struct stream *s)
{
    struct write_op *op;
    int st = write_queue_take(s->writes, &op);
    if (!op) { /* the queue is of no use any more; its slabs are given up with it */
        keep_failure(s, st);
        s->writing = 0;
        pthread_mutex_lock(&s->lock);
        s->broken = 1;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        return;
    }
    struct slab *slab = (struct slab *)((char *)op - offsetof(struct slab, op));
    s->writing--;
    if (s->comm)
        comm_beat(s->comm);
    pthread_mutex_lock(&s->lock);
    keep_failure(s, st);
    slab->next = s->free;
    s->free = slab;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void put_slab(struct stream *s, struct slab *slab)
{
    struct stream_file *f = slab->file;
    look_through(f, slab);
    for (size_t i = 0; i < slab->bytes; i += s->block)
        f->blocks[(slab->offset + i) / s->block] =
            sum_hash64(slab->data + i, MIN(slab->bytes - i, (size_t)s->block), 0);
    sum_add(s->sum, slab->data, slab->bytes);
    size_t bytes = slab->bytes;
    if (s->direct) {
        bytes = (size_t)round_up((int64_t)bytes, FILE_DIRECT_ALIGN);
        memset(slab->data + slab->bytes, 0, bytes - slab->bytes);
    }
    slab->op = (struct write_op){ .fd = s->fd,
        .path = f->path,
        .data = slab->data,
        .bytes = bytes,
        .offset = slab->offset,
        .align = s->direct ? FILE_DIRECT_ALIGN : 1 };
    write_queue_put(s->writes, &slab->op);
    s->writing++;
}

/* All of the open file is on its way: sees it to the disk. */
static void end_file(struct stream *s)
{
    struct stream_file *f = s->file;
    while (s->writing)
        take_written(s);
    if (s->status == SHERD_OK && s->direct)
        keep_failure(s, file_cut(s->fd, f->list->file_bytes, f->path));
    if (s->status == SHERD_OK)
        keep_failure(s, file_sync(s->fd, f->path));
    sum_text(s->sum, f->sum);
    s->past = file_is_direct(s->fd);
    close_file(s);
}

/* After a failure slabs only go round. */
static void handle(struct stream *s, struct slab *slab)
{
    struct stream_file *f = slab->file;
    int last = slab->offset + slab->bytes == f->list->file_bytes;
    int st = sherd_event_sync(slab->copied);
    if (st == SHERD_OK && s->status == SHERD_OK && slab->offset == 0)
        st = open_file(s, f);
    keep_failure(s, st);
    if (s->status == SHERD_OK) {
        while (s->writing >= WRITES_MOST)
            take_written(s);
        put_slab(s, slab);
    } else {
        pthread_mutex_lock(&s->lock);
        slab->next = s->free;
        s->free = slab;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    if (last && s->fd >= 0)
        end_file(s);
}

static void end_save(struct stream *s)
{
    close_file(s);
    if (s->status == SHERD_OK)
        keep_failure(s, file_sync_dir(s->dir));
}

/* One thing to do; the lock is held, and let go meanwhile. 0: nothing. */
static int work(struct stream *s)
{
    struct slab *slab = s->full;
    if (slab) {
        s->full = slab->next;
        if (!s->full)
            s->full_end = &s->full;
    } else if (!s->busy || (!s->writing && !s->fn && s->filling)) {
        return 0;
    }
    int (*fn)(void *) = s->fn, over = !slab && !s->writing && !s->filling;
    pthread_mutex_unlock(&s->lock);
    if (slab)
        handle(s, slab);
    else if (s->writing)
        take_written(s);
    else if (fn)
        keep_failure(s, fn(s->ctx));
    else
        end_save(s);
    pthread_mutex_lock(&s->lock);
    if (over) {
        s->busy = 0;
        s->fn = NULL;
        pthread_cond_broadcast(&s->changed);
    }
    return 1;
}

static void *serve(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->comm)
            comm_beat_with_files(s->comm);
        if (work(s))
            continue;
        if (s->stop)
            break;
        pthread_cond_wait(&s->more, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the caller ---- */

static int alloc_slabs(struct stream *s, uint64_t bytes)
{
    int64_t n = MAX(SLABS_LEAST, (int64_t)((bytes + CKPT_SLAB_BYTES - 1) / CKPT_SLAB_BYTES));
    s->slabs = mem_zalloc((size_t)n, sizeof(*s->slabs));
    if (!s->slabs)
        return SHERD_ENOMEM;
    s->n_slabs = (int)n;
    int st = sherd_host_alloc(s->dev, &s->memory, (size_t)n * CKPT_SLAB_BYTES + FILE_DIRECT_ALIGN);
    SHERD_TRY(status_context(st, "host memory to save through, %lld slabs", (long long)n));
    char *at = (char *)(uintptr_t)round_up((int64_t)(uintptr_t)s->memory, FILE_DIRECT_ALIGN);
    for (int i = 0; i < s->n_slabs; i++) {
        s->slabs[i].data = at + (size_t)i * CKPT_SLAB_BYTES;
        SHERD_TRY(sherd_event_create(&s->slabs[i].copied, s->dev));
        s->slabs[i].next = s->free;
        s->free = &s->slabs[i];
    }
    return SHERD_OK;
}

int stream_create(struct stream **out, struct sherd_device *dev, uint64_t bytes, enum write_kind kind)
{
    int st = SHERD_OK;
    struct stream *s = mem_zalloc(1, sizeof(*s));
    if (!s)
        return SHERD_ENOMEM;
    s->dev = dev;
    s->fd = -1;
    s->full_end = &s->full;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->changed, NULL);
    SHERD_TRY_OUT(sherd_queue_create(&s->queue, dev, SHERD_QUEUE_SIDE));
    SHERD_TRY_OUT(sherd_event_create(&s->taken, dev));
    SHERD_TRY_OUT(alloc_slabs(s, bytes));
    SHERD_TRY_OUT(write_queue_create(&s->writes, WRITES_MOST, kind));
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
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    write_queue_destroy(s->writes);
    for (int i = 0; i < s->n_slabs; i++) {
        if (s->slabs[i].copied)
            sherd_event_destroy(s->slabs[i].copied);
    }
    if (s->taken)
        sherd_event_destroy(s->taken);
    if (s->queue)
        sherd_queue_destroy(s->queue);
    if (s->memory)
        sherd_host_free(s->dev, s->memory);
    mem_free(s->slabs);
    pthread_cond_destroy(&s->changed);
    pthread_cond_destroy(&s->more);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void stream_tell(struct stream *s, struct sherd_comm *comm)
{
    pthread_mutex_lock(&s->lock);
    s->comm = comm;
    pthread_mutex_unlock(&s->lock);
}

uint64_t stream_memory(const struct stream *s)
{
    return (uint64_t)s->n_slabs * CKPT_SLAB_BYTES;
}

/* What is being put into slabs. */
struct filler {
    struct stream *s;
    struct stream_file *file;
    struct slab *slab;
    uint64_t at;
};

static struct slab *wait_for_slab(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->free && !s->broken)
        pthread_cond_wait(&s->changed, &s->lock);
    struct slab *slab = s->free;
    if (slab)
        s->free = slab->next;
    pthread_mutex_unlock(&s->lock);
    return slab;
}

static int hand_over(struct filler *w)
{
    struct stream *s = w->s;
    struct slab *slab = w->slab;
    w->slab = NULL;
    int st = sherd_event_record(slab->copied, s->queue);
    pthread_mutex_lock(&s->lock);
    slab->next = NULL;
    *s->full_end = slab;
    s->full_end = &slab->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Bytes [at, at + n) of a piece. */
static int fill_slab(struct filler *w, char *to, const struct piece *piece, size_t at, size_t n)
{
    if (!piece->halves)
        return sherd_copy(w->s->queue, &(struct sherd_copy){ to, piece->data + at, n });
    size_t first = at / sizeof(float);
    assert(at % sizeof(float) == 0 && n % sizeof(float) == 0); /* as slabs and headers are */
    return sherd_join(w->s->queue, &(struct sherd_join){ .master = (float *)to,
                                       .param = (const uint16_t *)piece->data + first,
                                       .low = piece->low ? piece->low + first : NULL,
                                       .n = (int64_t)(n / sizeof(float)) });
}

/* From the host, or a piece. */
static int fill(struct filler *w, const char *from, const struct piece *piece, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        if (!w->slab) {
            w->slab = wait_for_slab(w->s);
            if (!w->slab)
                return SHERD_FAIL(SHERD_EIO, "%s: writing has stopped", w->file->path);
            w->slab->file = w->file;
            w->slab->offset = w->at;
            w->slab->bytes = 0;
        }
        size_t n = MIN(bytes - at, CKPT_SLAB_BYTES - w->slab->bytes);
        char *to = w->slab->data + w->slab->bytes;
        if (piece)
            SHERD_TRY(fill_slab(w, to, piece, at, n));
        else
            memcpy(to, from + at, n);
        w->slab->bytes += n;
        w->at += n;
        at += n;
        if (w->slab->bytes == CKPT_SLAB_BYTES || w->at == w->file->list->file_bytes)
            SHERD_TRY(hand_over(w));
    }
    return SHERD_OK;
}

static int fill_file(struct filler *w)
{
    const struct piece_list *list = w->file->list;
    SHERD_TRY(fill(w, list->header, NULL, list->header_bytes));
    for (int i = 0; i < list->n; i++)
        SHERD_TRY(fill(w, NULL, &list->pieces[i], list->pieces[i].bytes));
    return SHERD_OK;
}

static void begin(struct stream *s, int filling)
{
    s->status = s->fill_status = SHERD_OK;
    s->busy = 1;
    s->filling = filling;
}

void stream_start(struct stream *s, struct stream_file *files, int n, uint64_t block, const char *dir)
{
    struct filler w = { .s = s };
    int st = SHERD_OK;
    pthread_mutex_lock(&s->lock);
    begin(s, 1);
    s->block = block;
    s->dir = dir;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        w.file = &files[i];
        w.at = 0;
        st = fill_file(&w);
    }
    SHERD_KEEP(st, sherd_event_record(s->taken, s->queue));
    pthread_mutex_lock(&s->lock);
    if (w.slab) { /* a copy failed in the middle of it */
        w.slab->next = s->free;
        s->free = w.slab;
    }
    s->fill_status = st;
    if (st != SHERD_OK)
        snprintf(s->fill_text, sizeof(s->fill_text), "%s", sherd_error());
    s->filling = 0;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

void stream_run(struct stream *s, int (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&s->lock);
    begin(s, 0);
    s->fn = fn;
    s->ctx = ctx;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

int stream_busy(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    int busy = s->busy;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

int stream_wait(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    int st = s->status == SHERD_OK ? SHERD_OK : status_adopt(s->status, s->text);
    if (st == SHERD_OK && s->fill_status != SHERD_OK)
        st = status_adopt(s->fill_status, s->fill_text);
    pthread_mutex_unlock(&s->lock);
    SHERD_KEEP(st, sherd_queue_sync(s->queue));
    return st;
}

struct sherd_event *stream_taken(const struct stream *s)
{
    return s->taken;
}

void stream_how(const struct stream *s, char out[64])
{
    snprintf(out, 64, "%s, %s", write_queue_name(s->writes),
        s->past ? "past the page cache" : "through the page cache");
}

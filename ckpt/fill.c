/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Filling slabs: see ckpt/fill.h. Every byte of every file has its place in a slab from the start, so pieces
 * may come in any order; slabs are handed over in the order of the files, each as soon as it and all before
 * it are full.
 */
#include "ckpt/fill.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "ckpt/format.h"
#include "ckpt/stream.h"
#include "device/ops.h"

struct unit {
    struct sherd_event *copied;
    int left;    /* pieces not asked for yet */
    int queued;  /* all were, or the save has failed */
    int awaited; /* somebody waited for it, between these two: */
    struct sherd_event *from, *to;
};

struct fill {
    struct slabs *slabs;
    struct sherd_queue *queue;
    struct unit *units;
    int n_units;
    pthread_t thread;
    int has_thread;
    /* under the lock of the slabs, as the units' flags */
    pthread_cond_t work;
    int due, stop;
    /* of a save */
    struct stream_file *files;
    int n_files;
    struct slab **open;   /* all slabs of all files; NULL before their first byte and after hand-over */
    int64_t n_open, next; /* the next one to hand over */
    double start;
    struct fill_times times;
    int status;
    char text[1024];
};

static void keep_failure(struct fill *f, int status)
{
    if (status == SHERD_OK || f->status != SHERD_OK)
        return;
    f->status = status;
    snprintf(f->text, sizeof(f->text), "%s", sherd_error());
}

/* ---- the thread ---- */

static int64_t slabs_of(const struct stream_file *file)
{
    return (int64_t)((file->list->file_bytes + CKPT_SLAB_BYTES - 1) / CKPT_SLAB_BYTES);
}

/* The slab of a place in a file; `before` are the slabs of the files before it. */
static int find_slab(
    struct fill *f, struct stream_file *file, int64_t before, uint64_t offset, struct slab **out)
{
    struct slab **place = &f->open[before + (int64_t)(offset / CKPT_SLAB_BYTES)];
    if (!*place) {
        struct slab *slab = slabs_take(f->slabs);
        if (!slab)
            return SHERD_FAIL(SHERD_EIO, "%s: writing has stopped", file->path);
        slab->file = file;
        slab->offset = offset / CKPT_SLAB_BYTES * CKPT_SLAB_BYTES;
        slab->bytes = MIN((size_t)(file->list->file_bytes - slab->offset), CKPT_SLAB_BYTES);
        slab->missing = slab->bytes;
        *place = slab;
    }
    *out = *place;
    return SHERD_OK;
}

/* Bytes [at, at + n) of a piece. */
static int copy_piece(struct fill *f, char *to, const struct piece *piece, size_t at, size_t n)
{
    if (!piece->halves)
        return sherd_copy(f->queue, &(struct sherd_copy){ to, piece->data + at, n });
    size_t first = at / sizeof(float);
    assert(at % sizeof(float) == 0 && n % sizeof(float) == 0); /* as slabs and headers are */
    return sherd_join(f->queue, &(struct sherd_join){ .master = (float *)to,
                                    .param = (const uint16_t *)piece->data + first,
                                    .low = piece->low ? piece->low + first : NULL,
                                    .n = (int64_t)(n / sizeof(float)) });
}

static void hand_over(struct fill *f)
{
    for (; f->next < f->n_open && f->open[f->next] && !f->open[f->next]->missing; f->next++) {
        slabs_hand_over(f->slabs, f->open[f->next]);
        f->open[f->next] = NULL;
    }
}

/* A piece, or the header of a file, to its place. */
static int put(struct fill *f, struct stream_file *file, int64_t before, const struct piece *piece)
{
    uint64_t offset = piece ? piece->offset : 0;
    size_t bytes = piece ? piece->bytes : file->list->header_bytes, n;
    for (size_t at = 0; at < bytes; at += n) {
        struct slab *slab = NULL;
        SHERD_TRY(find_slab(f, file, before, offset + at, &slab));
        size_t in = (size_t)(offset + at - slab->offset);
        n = MIN(bytes - at, slab->bytes - in);
        if (piece)
            SHERD_TRY(copy_piece(f, slab->data + in, piece, at, n));
        else
            memcpy(slab->data + in, file->list->header + at, n);
        slab->missing -= n;
        if (slab->missing)
            continue;
        SHERD_TRY(sherd_event_record(slab->copied, f->queue));
        hand_over(f);
    }
    if (piece)
        f->times.bytes += bytes;
    return SHERD_OK;
}

static void set_queued(struct fill *f, struct unit *u)
{
    pthread_mutex_lock(&f->slabs->lock);
    u->queued = 1;
    pthread_cond_broadcast(&f->slabs->changed);
    pthread_mutex_unlock(&f->slabs->lock);
}

/* The pieces of a unit in all files, or all pieces with -1. */
static int put_unit(struct fill *f, int unit)
{
    int64_t before = 0;
    for (int i = 0; i < f->n_files; before += slabs_of(&f->files[i]), i++) {
        struct stream_file *file = &f->files[i];
        if (unit <= 0)
            SHERD_TRY(put(f, file, before, NULL));
        for (int k = 0; k < file->list->n; k++) {
            const struct piece *piece = &file->list->pieces[k];
            struct unit *u = &f->units[piece->tensor->unit];
            if (unit >= 0 && piece->tensor->unit != unit)
                continue;
            SHERD_TRY(put(f, file, before, piece));
            if (--u->left)
                continue;
            SHERD_TRY(sherd_event_record(u->copied, f->queue));
            set_queued(f, u);
        }
    }
    return SHERD_OK;
}

/* Units come in the order in which the next step updates them, if no slab is needed twice. */
static int put_all(struct fill *f)
{
    f->n_open = f->next = 0;
    for (int i = 0; i < f->n_files; i++)
        f->n_open += slabs_of(&f->files[i]);
    f->open = mem_zalloc((size_t)f->n_open, sizeof(struct slab *));
    if (!f->open)
        return SHERD_ENOMEM;
    if (f->n_open > f->slabs->n)
        return put_unit(f, -1);
    for (int u = 0; u < f->n_units; u++)
        SHERD_TRY(put_unit(f, u));
    return SHERD_OK;
}

static void run(struct fill *f)
{
    struct slabs *s = f->slabs;
    if (f->status == SHERD_OK)
        keep_failure(f, put_all(f));
    for (int u = 0; u < f->n_units && f->status != SHERD_OK; u++)
        set_queued(f, &f->units[u]); /* what was copied is of no use: nobody needs to wait */
    keep_failure(f, sherd_queue_sync(f->queue));
    f->times.copied = clock_seconds() - f->start;
    for (int64_t i = 0; f->open && i < f->n_open; i++) {
        if (f->open[i]) /* a failure came before its end */
            slabs_give_back(s, f->open[i]);
    }
    mem_free(f->open);
    f->open = NULL;
}

static void *serve(void *arg)
{
    struct fill *f = arg;
    struct slabs *s = f->slabs;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!f->due && !f->stop)
            pthread_cond_wait(&f->work, &s->lock);
        if (!f->due)
            break;
        pthread_mutex_unlock(&s->lock);
        run(f);
        pthread_mutex_lock(&s->lock);
        f->due = 0;
        s->filling = 0;
        pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the caller ---- */

static void finish_unit(struct unit *u)
{
    sherd_event_destroy(u->copied);
    sherd_event_destroy(u->from);
    sherd_event_destroy(u->to);
    *u = (struct unit){ 0 };
}

int fill_create(struct fill **out, struct slabs *slabs)
{
    int st = SHERD_OK;
    struct fill *f = mem_zalloc(1, sizeof(*f));
    if (!f)
        return SHERD_ENOMEM;
    f->slabs = slabs;
    pthread_cond_init(&f->work, NULL);
    /* Copies need no processor; where masters are split they are joined, in the gaps of training. */
    SHERD_TRY_OUT(sherd_queue_create(&f->queue, slabs->dev, SHERD_QUEUE_LATE));
    f->queue->apart = 1;
    SHERD_TRY_OUT(thread_start(&f->thread, serve, f, "the thread that copies for saves"));
    f->has_thread = 1;
out:
    if (st != SHERD_OK) {
        fill_destroy(f);
        return st;
    }
    *out = f;
    return SHERD_OK;
}

void fill_destroy(struct fill *f)
{
    if (!f)
        return;
    if (f->has_thread) {
        pthread_mutex_lock(&f->slabs->lock);
        f->stop = 1;
        pthread_cond_signal(&f->work);
        pthread_mutex_unlock(&f->slabs->lock);
        pthread_join(f->thread, NULL);
    }
    for (int u = 0; u < f->n_units; u++)
        finish_unit(&f->units[u]);
    sherd_queue_destroy(f->queue);
    pthread_cond_destroy(&f->work);
    mem_free(f->units);
    mem_free(f);
}

struct sherd_queue *fill_queue(const struct fill *f)
{
    return f->queue;
}

/* Once for all saves, which are of one model. */
static int make_units(struct fill *f, int n)
{
    if (!f->units)
        f->units = mem_zalloc((size_t)n, sizeof(*f->units));
    if (!f->units)
        return SHERD_ENOMEM;
    for (; f->n_units < n; f->n_units++) {
        struct unit *u = &f->units[f->n_units];
        int st = sherd_event_create(&u->copied, f->slabs->dev);
        if (st == SHERD_OK)
            st = sherd_event_create(&u->from, f->slabs->dev);
        if (st == SHERD_OK)
            st = sherd_event_create(&u->to, f->slabs->dev);
        if (st != SHERD_OK) {
            finish_unit(u);
            return st;
        }
    }
    return SHERD_OK;
}

/* The pieces of every unit. */
static void count_pieces(struct fill *f)
{
    for (int u = 0; u < f->n_units; u++)
        f->units[u].left = f->units[u].awaited = 0;
    for (int i = 0; i < f->n_files; i++)
        for (int k = 0; k < f->files[i].list->n; k++)
            f->units[f->files[i].list->pieces[k].tensor->unit].left++;
}

void fill_start(struct fill *f, struct stream_file *files, int n_files, int n_units)
{
    f->start = clock_seconds();
    f->files = files;
    f->n_files = n_files;
    f->times = (struct fill_times){ 0 };
    f->status = SHERD_OK;
    keep_failure(f, make_units(f, n_units));
    if (f->status == SHERD_OK)
        count_pieces(f);
    pthread_mutex_lock(&f->slabs->lock);
    for (int u = 0; u < f->n_units; u++)
        f->units[u].queued = f->units[u].left == 0;
    f->slabs->filling = 1;
    f->due = 1;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->slabs->lock);
}

int fill_await(struct fill *f, int unit, struct sherd_queue *queue)
{
    if (unit >= f->n_units) /* there was no memory for it: nothing of the save is copied */
        return SHERD_OK;
    struct unit *u = &f->units[unit];
    SHERD_TRY(device_stamp(u->from, queue));
    pthread_mutex_lock(&f->slabs->lock);
    while (!u->queued)
        pthread_cond_wait(&f->slabs->changed, &f->slabs->lock);
    pthread_mutex_unlock(&f->slabs->lock);
    SHERD_TRY(sherd_event_wait(queue, u->copied));
    u->awaited = 1;
    return device_stamp(u->to, queue);
}

int fill_status(const struct fill *f)
{
    return f->status == SHERD_OK ? SHERD_OK : status_adopt(f->status, f->text);
}

int fill_read(struct fill *f, struct fill_times *out)
{
    *out = f->times;
    for (int i = 0; i < f->n_units; i++) {
        const struct unit *u = &f->units[i];
        double ms;
        if (!u->awaited)
            continue;
        SHERD_TRY(sherd_event_sync(u->to));
        SHERD_TRY(sherd_event_elapsed(u->from, u->to, &ms));
        out->waited += 1e-3 * ms;
    }
    return SHERD_OK;
}

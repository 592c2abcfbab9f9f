/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Views and the buffer they are copied through: see ckpt/views.h.
 */
#include "ckpt/views.h"

#include <string.h>

#include <sherd/ops.h>

#include "base/status.h"
#include "ckpt/safetensors.h"

const struct shard_view *views_find(
    const struct ckpt_job *job, const char *what, int unit, enum shard_segment segment)
{
    for (int i = 0; i < job->n_views; i++) {
        const struct shard_view *v = &job->views[i];
        if (v->unit == unit && v->segment == segment && !strcmp(v->what, what))
            return v;
    }
    return NULL;
}

static int check_one(const struct ckpt_job *job, const char *what, int unit, enum shard_segment segment)
{
    const struct shard_view *v = views_find(job, what, unit, segment);
    int64_t elems = layout_slice(job->layout, unit, segment), first = elems * sherd_comm_rank(job->comm);
    int frozen_weight = segment == SHARD_FROZEN && !strcmp(what, CKPT_WEIGHT);
    if (!elems)
        return SHERD_OK;
    if (!v || v->first > first || v->first + v->elems < first + elems)
        return SHERD_BUG("checkpoint: no view of %s of unit %s covers this rank's slice", what,
            job->layout->units[unit].name);
    if (!st_convertible(v->type) || (v->type != SHERD_F32 && !frozen_weight))
        return SHERD_BUG("checkpoint: the view of %s of unit %s has type %s", what,
            job->layout->units[unit].name, sherd_dtype_name(v->type));
    return SHERD_OK;
}

int views_check(const struct ckpt_job *job, const char *const *states, int n_states)
{
    if (job->layout->world != sherd_comm_size(job->comm))
        return SHERD_BUG("checkpoint: the layout is for %d ranks, the communicator has %d",
            job->layout->world, sherd_comm_size(job->comm));
    for (int u = 0; u < job->layout->n_units; u++) {
        SHERD_TRY(check_one(job, CKPT_WEIGHT, u, SHARD_TRAINED));
        SHERD_TRY(check_one(job, CKPT_WEIGHT, u, SHARD_FROZEN));
        for (int i = 0; i < n_states; i++)
            SHERD_TRY(check_one(job, states[i], u, SHARD_TRAINED));
    }
    return SHERD_OK;
}

int ferry_init(struct ferry *ferry, struct sherd_device *dev)
{
    *ferry = (struct ferry){ .dev = dev };
    int st = sherd_queue_create(&ferry->queue, dev, SHERD_QUEUE_SIDE);
    if (st == SHERD_OK)
        st = status_context(
            sherd_host_alloc(dev, &ferry->host, CKPT_STAGING_BYTES), "host memory to load through");
    if (st != SHERD_OK)
        ferry_finish(ferry);
    return st;
}

void ferry_finish(struct ferry *ferry)
{
    if (ferry->host)
        sherd_host_free(ferry->dev, ferry->host);
    if (ferry->queue)
        sherd_queue_destroy(ferry->queue);
    *ferry = (struct ferry){ 0 };
}

/* Bytes of an element where it is kept. */
static size_t kept_bytes(const struct shard_view *view)
{
    return view->halves ? sizeof(uint16_t) : sherd_dtype_bytes(view->type);
}

int ferry_from(struct ferry *ferry, const struct shard_view *view, int64_t at, const void *from, int64_t n)
{
    size_t size = kept_bytes(view);
    SHERD_TRY(sherd_copy(ferry->queue,
        &(struct sherd_copy){ (char *)view->data + size * (size_t)at, from, size * (size_t)n }));
    return sherd_queue_sync(ferry->queue);
}

int ferry_in(struct ferry *ferry, const struct shard_view *view, int64_t at, int64_t n)
{
    if (!view->halves)
        return ferry_from(ferry, view, at, ferry->host, n);
    SHERD_TRY(sherd_split(ferry->queue, &(struct sherd_split){ .param = (uint16_t *)view->data + at,
                                            .low = view->low ? view->low + at : NULL,
                                            .master = ferry->host,
                                            .n = n }));
    return sherd_queue_sync(ferry->queue);
}

int ferry_zero(struct ferry *ferry, const struct shard_view *view, int64_t at, int64_t n)
{
    size_t size = kept_bytes(view);
    SHERD_TRY(sherd_fill(
        ferry->queue, &(struct sherd_fill){ (char *)view->data + size * (size_t)at, size * (size_t)n, 0 }));
    if (view->low)
        SHERD_TRY(sherd_fill(
            ferry->queue, &(struct sherd_fill){ view->low + at, sizeof(*view->low) * (size_t)n, 0 }));
    return sherd_queue_sync(ferry->queue);
}

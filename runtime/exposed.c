/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Stamps around waits and collectives of the compute queue: see runtime/exposed.h.
 */
#include "runtime/exposed.h"

#include "base/mem.h"
#include "base/status.h"

static int stamp(struct exposed *x)
{
    SHERD_TRY(mem_grow(&x->stamps, &x->cap, x->n + 1, sizeof(struct sherd_event *)));
    if (x->n == x->n_stamps) {
        SHERD_TRY(sherd_event_create(&x->stamps[x->n], x->queue->dev));
        x->n_stamps++;
    }
    return device_stamp(x->stamps[x->n++], x->queue);
}

static int begin(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *what)
{
    struct exposed *x = (struct exposed *)probe;
    (void)what; /* without operations the device shows waits and collectives only */
    return queue == x->queue && x->depth++ == 0 ? stamp(x) : SHERD_OK;
}

static int end(struct device_probe *probe, struct sherd_queue *queue)
{
    struct exposed *x = (struct exposed *)probe;
    return queue == x->queue && --x->depth == 0 ? stamp(x) : SHERD_OK;
}

void exposed_init(struct exposed *x, struct sherd_queue *queue)
{
    *x = (struct exposed){ .probe = { .begin = begin, .end = end }, .queue = queue };
}

void exposed_finish(struct exposed *x)
{
    for (int i = 0; i < x->n_stamps; i++)
        sherd_event_destroy(x->stamps[i]);
    mem_free(x->stamps);
    *x = (struct exposed){ 0 };
}

int exposed_line(const struct sherd_config *c, int64_t step)
{
    return step == 1 || step == c->train.steps || (c->log.every > 0 && step % c->log.every == 0);
}

void exposed_step(struct exposed *x, const struct sherd_config *c, int64_t step)
{
    x->due = x->n_stamps == 0 || exposed_line(c, step);
    x->n = 0;
}

void exposed_begin(struct exposed *x)
{
    x->n = x->depth = 0;
    x->queue->dev->probe = &x->probe;
}

void exposed_end(struct exposed *x)
{
    x->queue->dev->probe = NULL;
}

int exposed_read(const struct exposed *x, double *seconds)
{
    double sum = 0, ms;
    *seconds = -1;
    if (!x->due)
        return SHERD_OK;
    for (int i = 0; i + 1 < x->n; i += 2) {
        SHERD_TRY(sherd_event_elapsed(x->stamps[i], x->stamps[i + 1], &ms));
        sum += ms;
    }
    *seconds = 1e-3 * sum;
    return SHERD_OK;
}

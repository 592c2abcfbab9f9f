/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See runtime/dry.h.
 */
#include "runtime/dry.h"

#include "base/mem.h"
#include "base/status.h"
#include "device/ops.h"
#include "model/model.h"
#include "runtime/plan.h"

/* Addresses that are never read; far apart, so that no region of a layer runs into the next. */
#define PLACE(i) ((void *)(uintptr_t)((uint64_t)((i) + 1) << 44))

int dry_init(struct dry *d, const struct plan *plan, struct device_probe *probe)
{
    size_t most = 1;
    for (int u = 0; u < plan->spec->n_units; u++)
        most = MAX(most, (size_t)plan->spec->units[u].n_params);
    *d = (struct dry){ .plan = plan,
        .probe = probe,
        .w = mem_zalloc(most, sizeof(*d->w)),
        .dw = mem_zalloc(most, sizeof(*d->dw)),
        .fresh = mem_zalloc(most, 1) };
    return d->w && d->dw && d->fresh ? SHERD_OK : SHERD_ENOMEM;
}

void dry_finish(struct dry *d)
{
    mem_free(d->w);
    mem_free(d->dw);
    mem_free(d->fresh);
    *d = (struct dry){ 0 };
}

static void point_at_unit(struct dry *d, int unit, int fresh)
{
    const struct sherd_unit *u = &d->plan->spec->units[unit];
    for (int i = 0; i < u->n_params; i++) {
        d->w[i] = PLACE(16 + i);
        d->dw[i] = u->params[i].flags & SHERD_FROZEN ? NULL : PLACE(16 + u->n_params + i);
        d->fresh[i] = fresh && d->dw[i];
    }
}

int dry_layer(struct dry *d, int l, enum dry_work work)
{
    const struct plan *p = d->plan;
    const struct sherd_layer *layer = &p->spec->layers[l];
    struct sherd_device dev = { .ops = &dev_dry, .name = "dry", .probe = d->probe };
    struct sherd_queue queue = { .dev = &dev };
    int last = l == p->spec->n_layers - 1;
    point_at_unit(d, layer->unit, work == DRY_NEW);
    struct sherd_run run = { .queue = &queue,
        .arg = layer->arg,
        .mode = SHERD_TRAIN,
        .in = { p->batch, p->seq, p->layers[l].in_width },
        .type = p->type,
        .grad_type = p->memory_desc.reduce,
        .recompute = p->recompute,
        .again = work == DRY_AGAIN,
        .w = (const void *const *)d->w,
        .dw = d->dw,
        .fresh = layer->ops->overwrites ? d->fresh : NULL,
        .x = l == 0 ? NULL : PLACE(0),
        .y = last ? NULL : PLACE(1),
        .dy = last ? NULL : PLACE(2),
        .dx = l > p->program.first_trained ? PLACE(3) : NULL,
        .saved = PLACE(4),
        .scratch = PLACE(5),
        .tokens = PLACE(6),
        .targets = PLACE(7),
        .loss_sum = PLACE(8),
        .count = PLACE(9) };
    int forward = work == DRY_FORWARD || work == DRY_AGAIN;
    return forward ? model_layer_forward(layer, &run) : model_layer_backward(layer, &run);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A step with a value that is not finite: see runtime/finite.h. Values are looked at on the host, where the
 * element can be named; the order of looking is that of the step, so the first found is the origin.
 */
#include "runtime/finite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/board.h"
#include "model/model.h"
#include "runtime/engine.h"

#define STAGING_BYTES ((size_t)1 << 22)
#define TEXT_BYTES 400

/* What a rank found first; `order` is its place in the step, INT64_MAX = nothing. */
struct finding {
    int64_t order;
    char text[TEXT_BYTES];
};

struct finder {
    struct finding found;
    int64_t looks; /* so far: the order */
    char *host;
};

/* First of n values that is not finite, -1 if there is none. */
static int64_t scan(const char *data, int64_t n, enum sherd_dtype type, double *value)
{
    for (int64_t i = 0; i < n; i++) {
        if (type == SHERD_BF16) {
            bf16 h;
            memcpy(&h, data + i * (int64_t)sizeof(h), sizeof(h));
            *value = (double)bf16_to_float(h);
        } else if (type == SHERD_F16) {
            f16 h;
            memcpy(&h, data + i * (int64_t)sizeof(h), sizeof(h));
            *value = (double)f16_to_float(h);
        } else if (type == SHERD_F64) {
            memcpy(value, data + i * (int64_t)sizeof(*value), sizeof(*value));
        } else {
            float f;
            memcpy(&f, data + i * (int64_t)sizeof(f), sizeof(f));
            *value = (double)f;
        }
        if (!isfinite(*value))
            return i;
    }
    return -1;
}

/* The same for device memory that the compute queue has written. */
static int look(struct sherd_engine *e, struct finder *f, const void *data, int64_t n, enum sherd_dtype type,
    int64_t *at, double *value)
{
    int64_t most = (int64_t)(STAGING_BYTES / sherd_dtype_bytes(type));
    *at = -1;
    f->looks++;
    for (int64_t i = 0; i < n && *at < 0; i += most) {
        int64_t m = MIN(most, n - i);
        SHERD_TRY(sherd_copy(e->compute, &(struct sherd_copy){ .dst = f->host,
                                             .src = (const char *)data + (size_t)i * sherd_dtype_bytes(type),
                                             .bytes = (size_t)m * sherd_dtype_bytes(type) }));
        SHERD_TRY(sherd_queue_sync(e->compute));
        *at = scan(f->host, m, type, value);
        *at += *at >= 0 ? i : 0;
    }
    comm_beat(e->comm);
    return SHERD_OK;
}

/* "element 17 is inf" of a tensor of the unit, which element `at` of the segment lies in. */
static void name_element(
    const struct sherd_engine *e, int unit, enum shard_segment segment, int64_t at, double value, char *buf)
{
    const struct shard_layout *layout = &e->plan.layout;
    const struct shard_unit_layout *ul = &layout->units[unit];
    const char *what = isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    for (int i = ul->first_tensor; i < ul->first_tensor + ul->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        if (t->segment == segment && at >= t->offset && at < t->offset + t->elems) {
            snprintf(buf, TEXT_BYTES / 2, "%s, whose element %lld is %s", t->name,
                (long long)(at - t->offset), what);
            return;
        }
    }
    snprintf(buf, TEXT_BYTES / 2, "the padding of unit %s, which holds %s", ul->name, what);
}

static void found(struct finder *f, int micro, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void found(struct finder *f, int micro, const char *format, ...)
{
    va_list args;
    char text[TEXT_BYTES / 2 + 100];
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    f->found.order = f->looks;
    if (micro >= 0)
        snprintf(f->found.text, TEXT_BYTES, "micro-batch %d: %s", micro + 1, text);
    else
        snprintf(f->found.text, TEXT_BYTES, "%s", text);
}

static int done(const struct finder *f)
{
    return f->found.order != INT64_MAX;
}

/* The parameters of the layer's unit, or their gradients. */
static int look_at_params(struct sherd_engine *e, struct finder *f, int unit, const struct sherd_layer *layer,
    const void *const *data, enum sherd_dtype type, const char *what, int micro)
{
    const struct shard_unit_layout *ul = &e->plan.layout.units[unit];
    char name[TEXT_BYTES / 2];
    int64_t at;
    double value;
    for (int i = 0; i < ul->n_params && !done(f); i++) {
        if (!data[i])
            continue;
        SHERD_TRY(
            look(e, f, data[i], model_param_elems(&e->plan.spec->units[unit].params[i]), type, &at, &value));
        if (at < 0)
            continue;
        name_element(e, unit, ul->param_segment[i], ul->param_offset[i] + at, value, name);
        found(f, micro, "%s%s (layer %s)", what, name, layer->name);
    }
    return SHERD_OK;
}

static int look_at_values(struct sherd_engine *e, struct finder *f, const struct sherd_layer *layer,
    const void *data, int64_t n, enum sherd_dtype type, const char *what, int micro)
{
    int64_t at;
    double value;
    if (!data || done(f))
        return SHERD_OK;
    SHERD_TRY(look(e, f, data, n, type, &at, &value));
    if (at >= 0)
        found(f, micro, "%s of layer %s, whose element %lld is %s", what, layer->name, (long long)at,
            isnan(value) ? "nan"
            : value > 0  ? "inf"
                         : "-inf");
    return SHERD_OK;
}

int finite_before(struct sherd_engine *e, struct finder *f, const struct program_instr *in,
    const struct sherd_run *run, int micro)
{
    const struct sherd_layer *layer = &e->plan.spec->layers[in->index];
    if (done(f) || in->op != PROGRAM_FORWARD || micro > 0)
        return SHERD_OK;
    return look_at_params(
        e, f, layer->unit, layer, run->w, run->type, "before the step, in the weights: ", -1);
}

int finite_after(struct sherd_engine *e, struct finder *f, const struct program_instr *in,
    const struct sherd_run *run, int micro)
{
    const struct sherd_layer *layer = &e->plan.spec->layers[in->index];
    int64_t rows = run->in.batch * run->in.seq;
    if (done(f))
        return SHERD_OK;
    if (in->op == PROGRAM_FORWARD)
        return look_at_values(e, f, layer, run->y, rows * e->plan.layers[in->index].sizes.out_width,
            run->type, "the output", micro);
    if (in->op != PROGRAM_BACKWARD)
        return SHERD_OK;
    if (in->index == e->plan.spec->n_layers - 1)
        SHERD_TRY(look_at_values(e, f, layer, run->loss_sum, 1, SHERD_F64, "the loss, the end", micro));
    SHERD_TRY(look_at_params(
        e, f, layer->unit, layer, (const void *const *)run->dw, run->grad_type, "the gradient of ", micro));
    return look_at_values(
        e, f, layer, run->dx, rows * run->in.width, run->type, "the gradient of the input", micro);
}

/* The rank's own slices of the summed gradients. */
static int look_at_sums(struct sherd_engine *e, struct finder *f)
{
    const struct shard_store *s = &e->store;
    char name[TEXT_BYTES / 2];
    int64_t at;
    double value;
    for (int u = 0; u < e->plan.layout.n_units && !done(f); u++) {
        int64_t slice = layout_slice(&e->plan.layout, u, SHARD_TRAINED), first = slice * s->rank;
        const char *own = (const char *)s->units[u].grad +
                          sherd_dtype_bytes(s->grad_type) * (size_t)(first - store_state_first(s, u));
        SHERD_TRY(look(e, f, own, slice, s->grad_type, &at, &value));
        if (at < 0)
            continue;
        name_element(e, u, SHARD_TRAINED, first + at, value, name);
        found(f, -1, "only once summed over ranks and micro-batches, the gradient of %s", name);
    }
    return SHERD_OK;
}

/* The earliest of all ranks' findings, and who has it too. */
static void tell(const struct finding *all, int world, uint8_t *same, char *buf, size_t bytes)
{
    char names[128];
    int first = 0, n = 0;
    for (int r = 0; r < world; r++)
        if (all[r].order < all[first].order)
            first = r;
    if (all[first].order == INT64_MAX) {
        snprintf(buf, bytes,
            "run a second time, the step was sound: a fault of the hardware, or of something that "
            "differs from run to run");
        return;
    }
    for (int r = 0; r < world; r++) {
        same[r] = all[r].order == all[first].order;
        n += same[r];
    }
    snprintf(buf, bytes, "first on rank %d, %s%s%s%s", first, all[first].text, n > 1 ? " (and so on " : "",
        n > 1 ? board_ranks(same, world, names, sizeof(names)) : "", n > 1 ? ")" : "");
}

/* Collective. Runs the micro-batches of the step again, without its update, and writes what went wrong first
 * to buf: tensor, layer, rank and micro-batch, the same on every rank. */
static int find(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, char *buf, size_t bytes)
{
    int world = sherd_comm_size(e->comm);
    struct finder f = { .found = { .order = INT64_MAX } };
    struct finding *all = mem_zalloc((size_t)world, sizeof(*all));
    uint8_t *same = mem_zalloc((size_t)world, 1);
    int st = all && same ? sherd_host_alloc(e->dev, (void **)&f.host, STAGING_BYTES) : SHERD_ENOMEM;
    status_context(st, "host memory to look for values that are not finite");
    SHERD_TRY_OUT(comm_agree(e->comm, st));
    e->finder = &f;
    st = step_again(e, micro, n_micro);
    e->finder = NULL;
    if (st == SHERD_OK)
        st = look_at_sums(e, &f);
    if (st == SHERD_OK)
        st = comm_host_gather(e->comm, all, &f.found, sizeof(f.found));
    if (st == SHERD_OK)
        tell(all, world, same, buf, bytes);
out:
    sherd_host_free(e->dev, f.host);
    mem_free(all);
    mem_free(same);
    return st;
}

/* ---- the end of the step ---- */

/* The gradient overflowed under a loss scale that may fall: the step is skipped, as is usual. 0: it is not
 * so. */
static int overflowed(struct sherd_engine *e)
{
    double before = e->scale.value;
    if (!e->scale.dynamic || !scale_overflow(&e->scale, &e->config))
        return 0;
    e->skipped++;
    e->skipped_in_row++;
    if (sherd_comm_rank(e->comm) == 0 && e->scale.value < before)
        log_info("step %lld is skipped (%lld in all): its gradient overflows at a loss scale of %.15g, which "
                 "becomes %.15g",
            (long long)e->step + 1, (long long)e->skipped, before, e->scale.value);
    else if (sherd_comm_rank(e->comm) == 0)
        log_info("step %lld is skipped (%lld in all): its gradient overflows at a loss scale of %.15g, which "
                 "stays this time (dtype.hysteresis)",
            (long long)e->step + 1, (long long)e->skipped, before);
    return 1;
}

/* The step has a value that is not finite; its update has changed nothing. Finds where it came from, and then
 * fails, or passes the step over where train.nonfinite says so. */
static int end(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    char where[800];
    double kept[SCALAR_ALL]; /* looking writes over them */
    memcpy(kept, e->host_scalars, sizeof(kept));
    double loss = kept[SCALAR_LOSS], norm = kept[SCALAR_NORM];
    int64_t limit = e->config.train.nonfinite_limit;
    int st = graph_flush(e); /* looking writes over the gradient too */
    if (st == SHERD_OK)
        st = find(e, micro, n_micro, where, sizeof(where));
    memcpy(e->host_scalars, kept, sizeof(kept));
    if (st != SHERD_OK)
        return step_give_up(e, st);
    int skip = e->config.train.nonfinite == SHERD_NONFINITE_SKIP && !e->scale.dynamic;
    if (skip && e->skipped_in_row < limit) {
        e->skipped++;
        e->skipped_in_row++;
        if (sherd_comm_rank(e->comm) == 0)
            log_warn(
                "step %lld is skipped (%lld in a row of %lld allowed, %lld in all): loss sum %g, gradient norm %g; %s",
                (long long)e->step + 1, (long long)e->skipped_in_row, (long long)limit, (long long)e->skipped,
                isnan(loss) ? (double)NAN : loss, isnan(norm) ? (double)NAN : norm, where);
        return SHERD_OK;
    }
    struct text why = { 0 };
    if (skip)
        text_add(&why, " after %lld steps skipped in a row (train.nonfinite_limit)", (long long)limit);
    else if (e->scale.dynamic)
        text_add(&why, " at a loss scale of %.15g, which cannot fall below %.15g (dtype.min_loss_scale)",
            e->scale.value, e->config.dtype.min_loss_scale);
    st = SHERD_FAIL(SHERD_ENONFINITE,
        "step %lld%s: loss sum %g, gradient norm %g: %s; the weights are as before the step: try a lower "
        "optim.lr, a longer schedule.warmup or other data",
        (long long)e->step + 1, why.data ? why.data : "", isnan(loss) ? (double)NAN : loss,
        isnan(norm) ? (double)NAN : norm, where);
    text_finish(&why);
    return st;
}

int finite_end(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    return overflowed(e) ? SHERD_OK : end(e, micro, n_micro);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The interpreter of the step program: one optimizer step is a list of instructions, and this is what each of
 * them does. Read this first. The order of instructions comes from shard/program.c, the movements from
 * shard/move.c, the mathematics from the model's layers.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "model/model.h"
#include "runtime/engine.h"
#include "runtime/replica.h"

/* Sets weights[] (and gradients[] if backward) to the whole buffers of a unit, one entry for each parameter;
 * weights are NULL where a unit is not gathered because nobody reads it. */
static void point_at_unit(struct sherd_engine *e, int unit, int backward)
{
    const struct shard_unit_layout *ul = &e->plan.layout.units[unit];
    size_t p = sherd_dtype_bytes(e->plan.type), g = sherd_dtype_bytes(e->plan.memory_desc.reduce);
    for (int i = 0; i < ul->n_params; i++) {
        enum shard_segment segment = ul->param_segment[i];
        const char *whole = store_whole(&e->store, unit, segment);
        e->weights[i] = whole ? whole + p * (size_t)ul->param_offset[i] : NULL;
        e->gradients[i] = NULL;
        if (backward && segment == SHARD_TRAINED)
            e->gradients[i] = (char *)store_partial(&e->store, unit) + g * (size_t)ul->param_offset[i];
    }
}

/* Everything a layer may see in one call. */
static struct sherd_run make_run(struct sherd_engine *e, enum program_list list, int layer,
    const struct sherd_batch *batch, int index, float *logits)
{
    const struct plan *p = &e->plan;
    const struct plan_layer *pl = &p->layers[layer];
    int first = layer == 0, last = layer == p->spec->n_layers - 1;
    char *act = e->activation;
    /* Gradients alternate: layer l reads dy from buffer (l + 1) % 2 and writes dx to buffer l % 2. */
    return (struct sherd_run){ .queue = e->compute,
        .arg = p->spec->layers[layer].arg,
        .mode = list == PROGRAM_EVAL ? SHERD_EVAL : SHERD_TRAIN,
        .in = { batch->batch, p->seq, pl->in_width },
        .type = p->type,
        .grad_type = p->memory_desc.reduce,
        .recompute = p->recompute,
        .w = e->weights,
        .dw = e->gradients,
        .fresh = p->spec->layers[layer].ops->overwrites ? e->fresh : NULL,
        .x = first ? NULL : act + p->layers[layer - 1].y,
        .y = last ? NULL : act + pl->y,
        .dy = last ? NULL : act + p->gradient[(layer + 1) % 2],
        .dx = layer > p->program.first_trained ? act + p->gradient[layer % 2] : NULL,
        .saved = (char *)e->saved + pl->saved,
        .scratch = e->scratch,
        .tokens = e->batches[index % PLAN_BATCH_SLOTS].tokens,
        .targets = e->batches[index % PLAN_BATCH_SLOTS].targets,
        .loss_sum = e->scalars + SCALAR_OWN_LOSS,
        .count = e->scalars + SCALAR_DIVISOR,
        .logits = logits };
}

static int fill_partial(struct sherd_engine *e, int unit, int64_t from, int64_t to)
{
    size_t each = sherd_dtype_bytes(e->plan.memory_desc.reduce);
    char *at = (char *)store_partial(&e->store, unit) + each * (size_t)from;
    return from == to ? SHERD_OK
                      : sherd_fill(e->compute,
                            &(struct sherd_fill){ .dst = at, .bytes = each * (size_t)(to - from) });
}

static int64_t param_end(const struct sherd_engine *e, int unit, int param)
{
    return e->plan.layout.units[unit].param_offset[param] +
           model_param_elems(&e->plan.spec->units[unit].params[param]);
}

/* The gradient of a unit begins. What layers will overwrite needs no zeros; the padding between does, since
 * it is summed and squared with the rest. */
static int run_zero(struct sherd_engine *e, int unit, int slot)
{
    const struct shard_unit_layout *ul = &e->plan.layout.units[unit];
    int64_t at = 0;
    SHERD_TRY(move_take_partial(&e->mover, unit, slot));
    for (int i = 0; i < ul->n_params; i++) {
        if (ul->param_segment[i] != SHARD_TRAINED)
            continue;
        SHERD_TRY(fill_partial(e, unit, at, ul->param_offset[i]));
        at = param_end(e, unit, i);
    }
    e->fresh_units[unit] = 1;
    return fill_partial(e, unit, at, ul->elems[SHARD_TRAINED]);
}

/* Zeroes the gradients of a unit that hold nothing yet. */
static int settle_unit(struct sherd_engine *e, int unit)
{
    const struct shard_unit_layout *ul = &e->plan.layout.units[unit];
    for (int i = 0; i < ul->n_params; i++)
        if (e->fresh[i] && ul->param_segment[i] == SHARD_TRAINED)
            SHERD_TRY(fill_partial(e, unit, ul->param_offset[i], param_end(e, unit, i)));
    e->fresh_units[unit] = 0;
    return SHERD_OK;
}

static int run_layer(struct sherd_engine *e, enum program_list list, const struct program_instr *in,
    const struct sherd_batch *batch, int index, float *logits)
{
    const struct sherd_layer *layer = &e->plan.spec->layers[in->index];
    int backward = in->op == PROGRAM_BACKWARD, unit = layer->unit;
    int fresh = backward && e->fresh_units[unit];
    memset(e->fresh, fresh, (size_t)e->plan.layout.units[unit].n_params);
    enum watch_phase phase = watch_phase(e, WATCH_WAIT);
    SHERD_TRY(move_await(&e->mover, unit));
    watch_phase(e, phase);
    if (fresh && (batch->batch == 0 || !layer->ops->overwrites))
        SHERD_TRY(settle_unit(e, unit));
    if (batch->batch == 0) /* this rank has nothing to compute; it still moves units for the others */
        return SHERD_OK;
    point_at_unit(e, unit, backward);
    struct sherd_run run = make_run(e, list, in->index, batch, index, logits);
    run.again = in->op == PROGRAM_AGAIN;
    if (e->finder)
        SHERD_TRY(finite_before(e, e->finder, in, &run, index));
    SHERD_TRY(backward ? model_layer_backward(layer, &run) : model_layer_forward(layer, &run));
    if (fresh && layer->ops->overwrites)
        SHERD_TRY(settle_unit(e, unit));
    return e->finder ? finite_after(e, e->finder, in, &run, index) : SHERD_OK;
}

/* Gathers this rank's `n` doubles from all ranks on the reduce queue and adds them up in rank order, so that
 * the sums have the same bits on every rank, stage and kind of communicator. */
static int sum_over_ranks(struct sherd_engine *e, double *out, const double *own, int n)
{
    double *all = e->scalars + SCALAR_ALL;
    struct sherd_event *ready = e->scalars_ready;
    SHERD_TRY(sherd_event_record(ready, e->compute));
    SHERD_TRY(sherd_event_wait(e->reduce_queue, ready));
    SHERD_TRY(sherd_all_gather(e->reduce_comm, e->reduce_queue, all, own, n, SHERD_F64));
    SHERD_TRY(sherd_event_record(ready, e->reduce_queue));
    SHERD_TRY(sherd_event_wait(e->compute, ready));
    return sherd_ordered_sum(
        e->compute, &(struct sherd_ordered_sum){
                        .out = out, .in = all, .n = sherd_comm_size(e->comm), .stride = n, .cols = n });
}

/* Adds the square sum of the rank's own slice of a unit's gradient, whatever the stage holds of it. */
static int add_squares(struct sherd_engine *e, int unit)
{
    const struct shard_store *s = &e->store;
    int64_t slice = layout_slice(&e->plan.layout, unit, SHARD_TRAINED);
    int64_t first = slice * s->rank - store_state_first(s, unit);
    SHERD_TRY(move_await_grad(&e->mover, unit));
    return sherd_square_sum(e->compute,
        &(struct sherd_square_sum){ .sum = e->scalars + SCALAR_OWN_SQUARES,
            .x = (const char *)s->units[unit].grad + sherd_dtype_bytes(s->grad_type) * (size_t)first,
            .n = slice,
            .type = s->grad_type,
            .scratch = e->scratch });
}

/* Units in the order in which they were reduced, which is that of their updates reversed: the last reduction,
 * often the largest, goes on beside the sums of all others. */
static int run_norm(struct sherd_engine *e)
{
    const struct program_code *updates = &e->plan.program.list[PROGRAM_UPDATES];
    for (int i = updates->n - 1; i >= 0; i--)
        if (updates->at[i].op == PROGRAM_UPDATE)
            SHERD_TRY(add_squares(e, updates->at[i].index));
    /* loss and squares stand side by side in both places */
    return sum_over_ranks(e, e->scalars + SCALAR_LOSS, e->scalars + SCALAR_OWN_LOSS, 2);
}

static int run_clip(struct sherd_engine *e)
{
    SHERD_TRY(sherd_clip_factor(
        e->compute, &(struct sherd_clip_factor){ .factor = (float *)(e->scalars + SCALAR_FACTOR),
                        .norm = e->scalars + SCALAR_NORM,
                        .square_sum = e->scalars + SCALAR_SQUARES,
                        .loss = e->scalars + SCALAR_LOSS,
                        .scale = e->scalars + SCALAR_SCALE,
                        .max_norm = (float)e->config.optim.clip }));
    return sherd_event_record(e->clipped, e->compute);
}

struct optim_hyper step_hyper(const struct sherd_engine *e, int64_t step)
{
    const struct sherd_config *c = &e->config;
    /* Steps that were skipped count neither for the schedule nor for the correction of means that began at 0.
     * An update that does nothing may come before the first; one that is kept must not be taken for it. */
    int64_t updates = MAX(step - e->skipped, e->graph.capturing ? 2 : 1);
    return (struct optim_hyper){ .lr = (float)lr_at(c, updates, e->steps),
        .beta1 = (float)c->optim.beta1,
        .beta2 = (float)c->optim.beta2,
        .eps = (float)c->optim.eps,
        .weight_decay = (float)c->optim.weight_decay,
        .momentum = (float)c->optim.momentum,
        .step = updates,
        .factor = (const float *)(e->scalars + SCALAR_FACTOR),
        .rates = e->graph.capturing ? (const struct sherd_rates *)(e->scalars + SCALAR_RATES) : NULL };
}

/* Elements [from, to) of a tensor that this rank updates. */
static struct optim_span span_of(
    const struct sherd_engine *e, int unit, const struct shard_tensor *t, int64_t from, int64_t to)
{
    const struct shard_store *s = &e->store;
    const struct shard_unit *u = &s->units[unit];
    int64_t at = from - store_state_first(s, unit);
    struct optim_span span = { .master = u->master ? u->master + at : NULL,
        .low = u->low ? u->low + at : NULL,
        .grad = (const char *)u->grad + sherd_dtype_bytes(s->grad_type) * (size_t)at,
        .n = to - from,
        .decay = !(t->flags & SHERD_NO_DECAY),
        .param_type = e->plan.type,
        .grad_type = s->grad_type,
        .state_type = s->desc.state,
        .seed = (uint64_t)e->config.run.seed,
        .stream = rng_stream(t->name),
        .first = from - t->offset };
    if (e->plan.type != SHERD_F32)
        span.param =
            (char *)u->param[SHARD_TRAINED] +
            sherd_dtype_bytes(e->plan.type) * (size_t)(from - store_param_first(s, unit, SHARD_TRAINED));
    for (int k = 0; k < e->plan.optim->n_states; k++)
        span.state[k] = (char *)u->state[k] + sherd_dtype_bytes(s->desc.state) * (size_t)at;
    return span;
}

/* One span for each tensor; padding between them is in no span. Runs beside the next step, which waits for
 * the units that it needs. */
static int run_update(struct sherd_engine *e, int unit)
{
    const struct shard_unit_layout *ul = &e->plan.layout.units[unit];
    int64_t first = store_state_first(&e->store, unit), end = first + store_state_elems(&e->store, unit);
    struct optim_hyper hyper = step_hyper(e, e->update_step);
    SHERD_TRY(sherd_event_wait(e->update_queue, e->clipped));
    if (e->copying && !e->graph.capturing)
        SHERD_TRY(ckpt_saver_await(e->saver, unit, e->update_queue));
    for (int i = ul->first_tensor; i < ul->first_tensor + ul->n_tensors; i++) {
        const struct shard_tensor *t = &e->plan.layout.tensors[i];
        int64_t from = MAX(first, t->offset), to = MIN(end, t->offset + t->elems);
        if (t->segment != SHARD_TRAINED || from >= to)
            continue;
        struct optim_span span = span_of(e, unit, t, from, to);
        SHERD_TRY(e->plan.optim->update(e->update_queue, &span, &hyper));
    }
    return move_updated(&e->mover, unit);
}

int step_await_copies(struct sherd_engine *e, struct sherd_queue *queue)
{
    for (int u = 0; u < e->plan.layout.n_units && e->copying; u++)
        SHERD_TRY(ckpt_saver_await(e->saver, u, queue));
    e->copying = 0;
    return SHERD_OK;
}

static int run_instr(struct sherd_engine *e, enum program_list list, const struct program_instr *in,
    const struct sherd_batch *batch, int index, float *logits)
{
    switch (in->op) {
    case PROGRAM_GATHER:
        return move_gather(&e->mover, in->index, in->slot);
    case PROGRAM_RELEASE:
        return move_release(&e->mover, in->index);
    case PROGRAM_FORWARD:
    case PROGRAM_AGAIN:
    case PROGRAM_BACKWARD:
        return run_layer(e, list, in, batch, index, logits);
    case PROGRAM_ZERO:
        return run_zero(e, in->index, in->slot);
    case PROGRAM_REDUCE:
        return move_reduce(&e->mover, in->index, index == 0);
    case PROGRAM_NORM:
        return run_norm(e);
    case PROGRAM_CLIP:
        return run_clip(e);
    case PROGRAM_UPDATE:
        return run_update(e, in->index);
    case PROGRAM_PUBLISH:
        return move_publish(&e->mover, in->index);
    }
    return SHERD_BUG("step program: instruction %d", (int)in->op);
}

static int run_list(
    struct sherd_engine *e, enum program_list list, const struct sherd_batch *batch, int index, float *logits)
{
    const struct program_code *code = &e->plan.program.list[list];
    for (int i = 0; i < code->n; i++) {
        int st = watch_instr(e, list, i);
        if (st > 0) {
            e->watch.done--;
            continue;
        }
        SHERD_KEEP(st, profile_instr_begin(e->profile, list, i));
        if (st == SHERD_OK)
            st = run_instr(e, list, &code->at[i], batch, index, logits);
        if (st == SHERD_OK)
            st = profile_instr_end(e->profile, list, i);
        if (st != SHERD_OK) {
            struct text place = { 0 };
            program_place(&place, &e->plan.program, &e->plan.program_desc, list, i);
            st = status_context(st, "step %lld, %s", (long long)e->step + 1, place.data ? place.data : "?");
            text_finish(&place);
            return st;
        }
    }
    return SHERD_OK;
}

/* Tokens and targets to the device; waits for the slot's last micro-batch only if the device is that late. */
static int send_batch(struct sherd_engine *e, const struct sherd_batch *batch, int index)
{
    struct engine_batch_slot *slot = &e->batches[index % PLAN_BATCH_SLOTS];
    size_t n = (size_t)(batch->batch * e->plan.seq), half = e->plan.token_bytes / sizeof(int32_t);
    if (n == 0)
        return SHERD_OK;
    int32_t *host = graph_tokens(e, index); /* filled before each launch */
    if (!host) {
        host = slot->host;
        SHERD_TRY(sherd_event_sync(slot->done));
        memcpy(host, batch->tokens, n * sizeof(int32_t));
        memcpy(host + half, batch->targets, n * sizeof(int32_t));
    }
    SHERD_TRY(sherd_copy(
        e->compute, &(struct sherd_copy){ .dst = slot->tokens, .src = host, .bytes = n * sizeof(int32_t) }));
    return sherd_copy(e->compute,
        &(struct sherd_copy){ .dst = slot->targets, .src = host + half, .bytes = n * sizeof(int32_t) });
}

int step_micro(
    struct sherd_engine *e, enum program_list list, const struct sherd_batch *batch, int index, float *logits)
{
    SHERD_TRY(profile_part_begin(e->profile, "tokens"));
    SHERD_TRY(send_batch(e, batch, index));
    SHERD_TRY(profile_part_end(e->profile));
    SHERD_TRY(run_list(e, list, batch, index, logits));
    return sherd_event_record(e->batches[index % PLAN_BATCH_SLOTS].done, e->compute);
}

static int check_batch(const struct sherd_engine *e, const struct sherd_batch *b, int index)
{
    if (b->batch > 0 && (!b->tokens || !b->targets))
        return SHERD_FAIL(SHERD_EINVAL, "micro-batch %d has no %s", index, b->tokens ? "targets" : "tokens");
    if (b->batch < 0 || b->batch > e->plan.batch)
        return SHERD_FAIL(SHERD_EINVAL,
            "micro-batch %d has %lld sequences, 0 to batch.micro = %lld are possible", index,
            (long long)b->batch, (long long)e->plan.batch);
    int64_t vocab = e->plan.spec->vocab;
    for (int64_t i = 0; vocab && i < b->batch * e->plan.seq; i++)
        if (b->tokens[i] < 0 || b->tokens[i] >= vocab || b->targets[i] >= vocab)
            return SHERD_FAIL(SHERD_EINVAL,
                "micro-batch %d, position %lld: token %d, target %d; the model has tokens 0 to %lld", index,
                (long long)i, (int)b->tokens[i], (int)b->targets[i], (long long)vocab - 1);
    return SHERD_OK;
}

int step_check_batches(struct sherd_engine *e, const struct sherd_batch *batches, int n)
{
    int st = SHERD_OK;
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = check_batch(e, &batches[i], i);
    return st == SHERD_OK || sherd_comm_size(e->comm) == 1 ? st : step_give_up(e, st);
}

/* This rank's part of the counts, left in the host's scalars. */
static void count(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    double *host = e->host_scalars;
    memset(host, 0, SCALAR_FACTOR * sizeof(*host));
    for (int i = 0; i < n_micro; i++) {
        for (int64_t k = 0; k < micro[i].batch * e->plan.seq; k++)
            host[SCALAR_OWN_COUNT] += micro[i].targets[k] >= 0;
        host[SCALAR_OWN_ROWS] += (double)micro[i].batch;
    }
    host[SCALAR_OWN_FLAG] = e->flag;
    host[SCALAR_OWN_DIVISOR] = host[SCALAR_OWN_COUNT] / e->scale.value;
    host[SCALAR_SCALE] = e->scale.value;
}

/* Valid targets of the whole step (and sequences, and wishes to stop): summed over the ranks before the first
 * loss needs them. */
static int send_count(struct sherd_engine *e)
{
    SHERD_TRY(watch_part(e, WATCH_WAIT, "counts"));
    SHERD_TRY(profile_part_begin(e->profile, "counts"));
    SHERD_TRY(sherd_copy(e->compute,
        &(struct sherd_copy){
            .dst = e->scalars, .src = e->host_scalars, .bytes = SCALAR_FACTOR * sizeof(double) }));
    SHERD_TRY(sum_over_ranks(e, e->scalars + SCALAR_COUNT, e->scalars + SCALAR_OWN_COUNT, 4));
    return profile_part_end(e->profile);
}

/* The failures of the last step's publications. All of this step's layers wait for them anyhow, and stand
 * before them in the queues. */
static int settle_published(struct sherd_engine *e)
{
    return e->plan.stage->publish && !e->graph.capturing ? sherd_queue_sync(e->gather_queue) : SHERD_OK;
}

static int run_micros(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    for (int i = 0; i < n_micro; i++) {
        enum program_list list = n_micro == 1       ? PROGRAM_ONLY
                                 : i == 0           ? PROGRAM_FIRST
                                 : i == n_micro - 1 ? PROGRAM_LAST
                                                    : PROGRAM_MIDDLE;
        SHERD_TRY(step_micro(e, list, &micro[i], i, NULL));
    }
    return settle_published(e);
}

int step_run(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    SHERD_TRY(send_count(e));
    SHERD_TRY(run_micros(e, micro, n_micro));
    SHERD_TRY(run_list(e, PROGRAM_AFTER, NULL, 0, NULL));
    SHERD_TRY(profile_part_begin(e->profile, "results"));
    SHERD_TRY(sherd_copy(
        e->compute, &(struct sherd_copy){
                        .dst = e->host_scalars, .src = e->scalars, .bytes = SCALAR_RATES * sizeof(double) }));
    return profile_part_end(e->profile);
}

int step_updates(struct sherd_engine *e, int64_t step)
{
    int copying = e->copying && !e->graph.capturing;
    e->update_step = step;
    if (copying)
        SHERD_TRY(engine_settle_saved(e));
    SHERD_TRY(run_list(e, PROGRAM_UPDATES, NULL, 0, NULL));
    if (copying)
        e->copying = 0;
    return SHERD_OK;
}

/* As one piece of work if all ranks can, else instruction by instruction. */
static int submit(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    int launched = 0, timed = profile_due(e->profile);
    count(e, micro, n_micro);
    exposed_step(&e->exposed, &e->config, e->step + 1);
    SHERD_TRY(graph_takes(e, micro, n_micro, &launched));
    if (launched)
        SHERD_TRY(graph_step(e, micro, n_micro, timed, &launched));
    if (launched)
        return SHERD_OK;
    SHERD_TRY(graph_flush(e));
    if (e->exposed.due)
        exposed_begin(&e->exposed);
    if (timed)
        SHERD_TRY(profile_step_begin(e->profile, e->step + 1));
    SHERD_TRY(step_run(e, micro, n_micro));
    SHERD_TRY(step_updates(e, e->step + 1));
    SHERD_TRY(profile_step_end(e->profile));
    exposed_end(&e->exposed);
    return SHERD_OK;
}

int step_give_up(struct sherd_engine *e, int st)
{
    char reason[sizeof(e->broken)];
    strncpy(reason, sherd_error(), sizeof(reason) - 1);
    reason[sizeof(reason) - 1] = 0;
    if (!e->broken[0])
        memcpy(e->broken, reason, sizeof(reason));
    e->dev->probe = NULL;
    sherd_comm_abort(e->comm, reason);
    sherd_comm_abort(e->reduce_comm, reason);
    (void)sherd_queue_sync(e->gather_queue);
    (void)sherd_queue_sync(e->reduce_queue);
    (void)sherd_queue_sync(e->update_queue);
    return status_adopt(st, reason);
}

/* Until loss and norm are known: updates go on, and publications. */
static int sync_results(struct sherd_engine *e)
{
    int st = watch_part(e, WATCH_WAIT, "end of the step");
    SHERD_KEEP(st, sherd_queue_sync(e->compute));
    SHERD_KEEP(st, sherd_queue_sync(e->reduce_queue));
    if (!e->plan.stage->publish)
        SHERD_KEEP(st, sherd_queue_sync(e->gather_queue));
    return st;
}

int step_again(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    count(e, micro, n_micro);
    SHERD_TRY(send_count(e));
    SHERD_TRY(run_micros(e, micro, n_micro));
    return engine_settle(e);
}

static int fill_stats(const struct sherd_engine *e, struct sherd_step_stats *out, double started, int skipped)
{
    double count = e->host_scalars[SCALAR_COUNT];
    *out = (struct sherd_step_stats){ .step = e->step,
        .loss = count > 0 ? e->host_scalars[SCALAR_LOSS] / count : 0,
        .grad_norm = e->host_scalars[SCALAR_NORM],
        .lr = lr_at(&e->config, e->step - (e->skipped - skipped), e->steps),
        .tokens = (int64_t)count,
        .tokens_seen = e->tokens_seen,
        .seconds = clock_seconds() - started,
        .skipped = skipped,
        .skipped_steps = e->skipped,
        .loss_scale = e->host_scalars[SCALAR_SCALE] };
    return exposed_read(&e->exposed, &out->exposed);
}

static int check_micros(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    if (n_micro < 1 || !micro)
        return SHERD_FAIL(
            SHERD_EINVAL, "a step needs at least one micro-batch (of zero sequences, if need be)");
    if (e->plan.accum == 1 && n_micro > 1)
        return SHERD_FAIL(SHERD_EINVAL,
            "%d micro-batches; this engine has memory for one a step, as batch.accum says: set it to the number of "
            "micro-batches",
            n_micro);
    return step_check_batches(e, micro, n_micro);
}

int sherd_engine_step(
    struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, struct sherd_step_stats *stats)
{
    double started = clock_seconds();
    SHERD_TRY(engine_check_weights(e));
    SHERD_TRY(plan_check_trained(&e->plan));
    SHERD_TRY(check_micros(e, micro, n_micro));
    int st = submit(e, micro, n_micro);
    if (st == SHERD_OK)
        st = sync_results(e);
    if (st != SHERD_OK)
        return step_give_up(e, st);
    double loss = e->host_scalars[SCALAR_LOSS], norm = e->host_scalars[SCALAR_NORM];
    int skipped = !isfinite(loss) || !isfinite(norm);
    if (skipped)
        SHERD_TRY(finite_end(e, micro, n_micro));
    if (!skipped) {
        e->skipped_in_row = 0;
        scale_good(&e->scale, &e->config);
    }
    e->step++;
    e->tokens_seen += (int64_t)e->host_scalars[SCALAR_COUNT];
    e->samples_seen += (int64_t)e->host_scalars[SCALAR_ROWS];
    watch_step(e);
    if (e->config.check.replicas && e->step % e->config.check.replicas == 0)
        SHERD_TRY(replica_check(e));
    return stats ? fill_stats(e, stats, started, skipped) : SHERD_OK;
}

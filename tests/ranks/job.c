/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Running a small job: see job.h.
 */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/mem.h"
#include "base/rng.h"
#include "device/cpu/cpu.h"
#include "model/model.h"
#include "runtime/engine.h"
#include "tests/ranks/job.h"
#include "tests/settings.h"
#include "tests/t.h"

struct job job_default(void)
{
    return (struct job){ .model = { .family = "gpt2",
                             .vocab = 101,
                             .width = 24,
                             .layers = 2,
                             .heads = 3,
                             .context = 16,
                             .tied = 1 },
        .stage = 0,
        .prefetch = 1,
        .world = 1,
        .overlap = 1,
        .micro = 2,
        .accum = 1,
        .seq = 8,
        .steps = 3,
        .lines = 1,
        .param = SHERD_F32,
        .reduce = SHERD_F32,
        .state = SHERD_F32,
        .optim = "adamw",
        .lr = 1e-2,
        .clip = 1.0,
        .weight_decay = 0.1 };
}

struct job job_like(const struct job *other)
{
    struct job job = *other;
    job.weights = job.grads = NULL;
    return job;
}

struct sherd_model_config job_llama(void)
{
    return (struct sherd_model_config){ .family = "llama",
        .vocab = 101,
        .width = 24,
        .layers = 3,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 6,
        .mlp_width = 40,
        .context = 16 };
}

void job_row(int64_t step, int64_t j, int64_t seq, int64_t vocab, int32_t *tokens, int32_t *targets)
{
    for (int64_t t = 0; t <= seq; t++) {
        uint32_t r[4];
        rng_block(r, 11, (uint64_t)step, (uint64_t)(j * (seq + 1) + t));
        /* a skewed stream, so that there is something to learn */
        int32_t token = (int32_t)((r[0] % (uint32_t)vocab) * (r[1] % (uint32_t)vocab) / (uint32_t)vocab);
        if (t < seq)
            tokens[t] = token;
        if (t > 0)
            targets[t - 1] = r[2] % 8 ? token : -1;
    }
}

static int make_config(const struct job *job, struct sherd_config *c)
{
    int st = sherd_config_default(c);
    if (st != SHERD_OK)
        return st;
    c->run.seed = 5;
    SETTINGS_TAKE(c, job, job->world);
    c->optim.lr = job->lr;
    c->optim.clip = job->clip;
    c->optim.weight_decay = job->weight_decay;
    c->optim.name = job->optim; /* outlives the config, which owns only texts it has read */
    c->schedule.kind = SHERD_LR_COSINE;
    c->schedule.warmup = 2;
    c->train.steps = JOB_MAX_STEPS;
    c->log.every = job->lines;
    c->dtype.loss_scale = job->scale.fixed;
    if (job->scale.least > 0)
        c->dtype.min_loss_scale = job->scale.least;
    if (job->scale.power)
        c->dtype.initial_scale_power = job->scale.power;
    if (job->scale.window)
        c->dtype.loss_scale_window = job->scale.window;
    if (job->scale.hysteresis)
        c->dtype.hysteresis = job->scale.hysteresis;
    return SHERD_OK;
}

/* The rank's micro-batches of one step of the common stream. */
static void fill(const struct job *job, int rank, int64_t step, struct sherd_batch *micro, int32_t *rows)
{
    int64_t total = job->micro * job->accum * job->world, limit = job->rows ? job->rows : total;
    for (int64_t m = 0; m < job->accum; m++) {
        int32_t *tokens = rows + 2 * m * job->micro * job->seq, *targets = tokens + job->micro * job->seq;
        micro[m] = (struct sherd_batch){ tokens, targets, 0 };
        for (int64_t i = 0; i < job->micro; i++) {
            int64_t j = (m * job->world + rank) * job->micro + i;
            if (j >= limit)
                break;
            job_row(step, j, job->seq, job->model.vocab, tokens + i * job->seq, targets + i * job->seq);
            micro[m].batch++;
        }
    }
    if (step + 1 == job->uneven && rank == job->world - 1)
        micro[0].batch--;
}

/* All tensors (or gradients) of the model, one after another. Collective; rank 0 keeps them. */
static int collect(struct sherd_engine *e, const char *what, float **out, int64_t *n)
{
    const struct shard_layout *layout = &e->plan.layout;
    float *all = malloc((size_t)layout->params * sizeof(float));
    int64_t at = 0;
    int st = SHERD_OK;
    for (int t = 0; t < layout->n_tensors && st == SHERD_OK; t++) {
        if (!strcmp(what, "grad") && layout->tensors[t].segment == SHARD_FROZEN)
            continue;
        st = sherd_engine_tensor(e, what, layout->tensors[t].name, all + at, layout->tensors[t].elems);
        at += layout->tensors[t].elems;
    }
    if (e->store.rank == 0) {
        *out = all;
        *n = at;
    } else {
        free(all);
    }
    return st;
}

/* What a thread that saves would do, at a moment that is always the same: whenever layer 0 is called forward.
 */
static _Thread_local struct {
    struct sherd_queue *queue;
    const struct sherd_layer_ops *ops;
    uint64_t ops_done;
} beside;

static int forward_with_work_beside(struct sherd_run *run)
{
    char byte;
    beside.ops_done++;
    SHERD_TRY(sherd_fill(beside.queue, &(struct sherd_fill){ .dst = &byte, .bytes = 1 }));
    return beside.ops->forward(run);
}

/* `plain` owns what the arguments of layers point to. */
static int make_beside(struct sherd_model **out, const struct sherd_model *plain, struct sherd_layer_ops *ops,
    struct sherd_device *dev)
{
    struct sherd_model_spec spec = *sherd_model_spec_of(plain);
    struct sherd_layer layers[16];
    T_TRUE(spec.n_layers <= (int)ARRAY_LEN(layers));
    memcpy(layers, spec.layers, (size_t)spec.n_layers * sizeof(*layers));
    beside.ops = layers[0].ops;
    *ops = *beside.ops;
    ops->forward = forward_with_work_beside;
    layers[0].ops = ops;
    spec.layers = layers;
    SHERD_TRY(sherd_queue_create(&beside.queue, dev, SHERD_QUEUE_COMPUTE));
    beside.queue->apart = 1;
    return sherd_model_create(out, &spec);
}

/* Blocks that use the unit of the first: embedding, block and, if it is not tied, head are all units. `plain`
 * owns what the arguments of layers point to. */
static int make_alike(struct sherd_model **out, const struct sherd_model *plain)
{
    struct sherd_model_spec spec = *sherd_model_spec_of(plain);
    struct sherd_layer layers[16];
    struct sherd_unit units[16];
    int first = spec.layers[1].unit, last = spec.layers[spec.n_layers - 2].unit, n = 0;
    T_TRUE(spec.n_layers <= (int)ARRAY_LEN(layers));
    memcpy(layers, spec.layers, (size_t)spec.n_layers * sizeof(*layers));
    for (int u = 0; u < spec.n_units; u++)
        if (u <= first || u > last)
            units[n++] = spec.units[u];
    for (int l = 0; l < spec.n_layers; l++)
        layers[l].unit = layers[l].unit <= first  ? layers[l].unit
                         : layers[l].unit <= last ? first
                                                  : layers[l].unit - (last - first);
    spec.units = units;
    spec.n_units = n;
    spec.layers = layers;
    return sherd_model_create(out, &spec);
}

/* What was counted before the steps; allocations before the second, those of all ranks. */
struct counts {
    struct sherd_comm_counters gather, reduce;
    struct sherd_device_counters dev;
    uint64_t allocs;
};

static void read_counts(struct counts *c, struct sherd_engine *e)
{
    sherd_device_read(e->dev, &c->dev);
    sherd_comm_read(e->comm, &c->gather);
    sherd_comm_read(e->reduce_comm, &c->reduce);
    c->allocs = mem_count();
}

static void keep_counts(struct job *job, struct sherd_engine *e, const struct counts *before)
{
    struct counts after;
    read_counts(&after, e);
    job->ops = after.dev.ops - before->dev.ops - beside.ops_done;
    for (int i = 0; i < SHERD_COLLECTIVES; i++) {
        job->sent.calls[i] =
            after.gather.calls[i] - before->gather.calls[i] + after.reduce.calls[i] - before->reduce.calls[i];
        job->sent.bytes[i] =
            after.gather.bytes[i] - before->gather.bytes[i] + after.reduce.bytes[i] - before->reduce.bytes[i];
    }
    job->step_allocs = job->steps > 1 ? after.allocs - before->allocs : 0;
    job->launches = e->graph.launches;
    sherd_engine_memory(e, &job->memory);
}

static int run_steps(struct job *job, int rank, struct sherd_engine *e)
{
    struct sherd_batch micro[16];
    int32_t *rows = malloc((size_t)(2 * job->accum * job->micro * job->seq) * sizeof(*rows));
    struct counts before;
    int st = SHERD_OK;
    beside.ops_done = 0;
    read_counts(&before, e);
    for (int s = 0; s < job->steps && st == SHERD_OK; s++) {
        struct sherd_step_stats stats;
        fill(job, rank, e->step, micro, rows);
        if (s == 1) { /* all ranks have returned from the first step: the count is of the whole process */
            st = sherd_comm_barrier(e->comm);
            before.allocs = mem_count();
        }
        if (st == SHERD_OK)
            st = sherd_engine_step(e, micro, (int)job->accum, &stats);
        if (rank == 0 && st == SHERD_OK)
            job->stats[stats.step - 1] = stats;
    }
    if (rank == 0)
        keep_counts(job, e, &before);
    if (st == SHERD_OK) /* none goes on to what is no step before the count is read */
        st = sherd_comm_barrier(e->comm);
    free(rows);
    return st;
}

static int run_rank(struct job *job, int rank, struct sherd_comm *comm, struct sherd_device *dev)
{
    struct sherd_config config;
    struct sherd_model *model = NULL, *changed = NULL;
    struct sherd_layer_ops beside_ops;
    struct sherd_engine *engine = NULL;
    struct sherd_device_counters before, after;
    int st = make_config(job, &config);
    sherd_device_read(dev, &before);
    if (st == SHERD_OK)
        st = sherd_model_build(&model, &job->model);
    if (st == SHERD_OK && job->freeze)
        st = model_freeze(model, job->freeze);
    if (st == SHERD_OK && job->beside)
        st = make_beside(&changed, model, &beside_ops, dev);
    else if (st == SHERD_OK && job->alike)
        st = make_alike(&changed, model);
    if (st == SHERD_OK)
        st = sherd_engine_create(
            &engine, &(struct sherd_engine_desc){ &config, changed ? changed : model, dev, comm });
    sherd_device_read(dev, &after);
    if (rank == 0)
        job->engine_bytes = after.bytes - before.bytes;
    if (st == SHERD_OK && job->load)
        st = sherd_engine_load(engine, job->load);
    if (st == SHERD_OK)
        st = run_steps(job, rank, engine);
    if (st == SHERD_OK && job->save)
        st = sherd_engine_save(engine, job->save, NULL);
    if (st == SHERD_OK)
        st = collect(engine, "weight", &job->weights, &job->n_weights);
    if (st == SHERD_OK && job->steps > 0)
        st = collect(engine, "grad", &job->grads, &job->n_grads);
    job->status[rank] = st;
    if (st != SHERD_OK)
        snprintf(job->error[rank], sizeof(job->error[rank]), "%s", sherd_error());
    sherd_engine_destroy(engine);
    sherd_queue_destroy(beside.queue);
    beside.queue = NULL;
    sherd_model_destroy(changed);
    sherd_model_destroy(model);
    sherd_config_free(&config);
    return st;
}

static void rank_main(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct job *job = ctx;
    if (job->delay_us)
        cpu_test_delay(dev, job->delay_us);
    run_rank(job, rank, comm, dev);
}

void job_run(struct job *job)
{
    job_free(job);
    t_ranks(job->world, T_THREADS | (job->overlap ? T_ASYNC : 0), rank_main, job);
}

void job_pass(struct job *job)
{
    job_run(job);
    for (int r = 0; r < job->world; r++)
        if (job->status[r] != SHERD_OK)
            fail_msg("stage %d world %d rank %d: %s: %s", job->stage, job->world, r,
                sherd_status_name(job->status[r]), job->error[r]);
}

void job_free(struct job *job)
{
    free(job->weights);
    free(job->grads);
    job->weights = job->grads = NULL;
}

void job_same_bits(const struct job *a, const struct job *b)
{
    assert_int_equal(a->n_weights, b->n_weights);
    for (int s = 0; s < a->steps; s++) {
        if (memcmp(&a->stats[s].loss, &b->stats[s].loss, sizeof(double)) ||
            memcmp(&a->stats[s].grad_norm, &b->stats[s].grad_norm, sizeof(double)))
            fail_msg(
                "step %d: stage %d world %d has loss %.17g norm %.17g; stage %d world %d has %.17g %.17g",
                s + 1, a->stage, a->world, a->stats[s].loss, a->stats[s].grad_norm, b->stage, b->world,
                b->stats[s].loss, b->stats[s].grad_norm);
        assert_int_equal(a->stats[s].tokens, b->stats[s].tokens);
    }
    for (int64_t i = 0; i < a->n_weights; i++)
        if (memcmp(&a->weights[i], &b->weights[i], sizeof(float)))
            fail_msg("weight %lld: stage %d world %d has %.9g, stage %d world %d has %.9g", (long long)i,
                a->stage, a->world, (double)a->weights[i], b->stage, b->world, (double)b->weights[i]);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double d = 0, r = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        r += (double)b[i] * b[i];
    }
    return sqrt(d / r);
}

void job_close(const struct job *a, const struct job *b, double bound)
{
    assert_int_equal(a->n_weights, b->n_weights);
    for (int s = 0; s < a->steps; s++)
        if (!(fabs(a->stats[s].loss - b->stats[s].loss) <= bound * fabs(b->stats[s].loss)) ||
            !(fabs(a->stats[s].grad_norm - b->stats[s].grad_norm) <= bound * fabs(b->stats[s].grad_norm)))
            fail_msg("step %d: stage %d world %d has loss %.9g norm %.9g; stage %d world %d has %.9g %.9g",
                s + 1, a->stage, a->world, a->stats[s].loss, a->stats[s].grad_norm, b->stage, b->world,
                b->stats[s].loss, b->stats[s].grad_norm);
    double d = distance(a->weights, b->weights, a->n_weights);
    if (!(d <= bound))
        fail_msg("weights of stage %d world %d and stage %d world %d are %.3g apart", a->stage, a->world,
            b->stage, b->world, d);
}

void job_stages_agree(struct job job, double bound)
{
    struct job at[4];
    for (int s = 0; s < 4; s++) {
        at[s] = job;
        at[s].stage = s;
        job_pass(&at[s]);
    }
    job_same_bits(&at[1], &at[0]);
    job_same_bits(&at[3], &at[2]);
    if (job.accum == 1)
        job_same_bits(&at[2], &at[0]);
    else
        job_close(&at[2], &at[0], bound);
    for (int s = 0; s < 4; s++)
        job_free(&at[s]);
}

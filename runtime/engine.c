/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Making, filling, asking and destroying an engine. Steps are run in runtime/step.c, checkpoints are written
 * in runtime/state.c.
 */
#include "runtime/engine.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "base/text.h"
#include "device/ops.h"
#include "runtime/keys.h"

/* Plain values only: texts of the caller's config may go away. */
static void keep_config(struct sherd_config *to, const struct sherd_config *from)
{
    *to = (struct sherd_config){ 0 };
    to->run.seed = from->run.seed;
    to->run.graph = from->run.graph;
    to->run.deterministic = from->run.deterministic;
    to->shard = from->shard;
    to->dtype = from->dtype;
    to->batch = from->batch;
    to->optim = from->optim;
    to->optim.name = NULL;
    to->schedule = from->schedule;
    to->train = from->train;
    to->check = from->check;
    to->save.what = from->save.what;
    to->log.every = from->log.every;
}

static int open_queues(struct sherd_engine *e)
{
    SHERD_TRY(sherd_queue_create(&e->compute, e->dev, SHERD_QUEUE_COMPUTE));
    SHERD_TRY(device_will_multiply(e->compute));
    e->gather_queue = e->reduce_queue = e->update_queue = e->compute;
    exposed_init(&e->exposed, e->compute);
    if (e->config.shard.overlap) {
        SHERD_TRY(sherd_queue_create(&e->gather_queue, e->dev, SHERD_QUEUE_SIDE));
        SHERD_TRY(sherd_queue_create(&e->reduce_queue, e->dev, SHERD_QUEUE_SIDE));
        SHERD_TRY(sherd_queue_create(&e->update_queue, e->dev, SHERD_QUEUE_LATE));
    }
    return SHERD_OK;
}

static int open_comms(struct sherd_engine *e)
{
    SHERD_TRY(sherd_comm_dup(&e->reduce_comm, e->comm));
    comm_compare(e->comm, e->config.check.collectives);
    comm_compare(e->reduce_comm, e->config.check.collectives);
    e->mover = (struct shard_mover){ .store = &e->store,
        .compute = e->compute,
        .gather = e->gather_queue,
        .reduce = e->reduce_queue,
        .update = e->update_queue,
        .gather_comm = e->comm,
        .reduce_comm = e->reduce_comm,
        .poison = e->config.shard.poison };
    return SHERD_OK;
}

/* What layers make of a micro-batch has no room: the keys that it follows from. */
static int no_memory(const struct sherd_engine *e, int st)
{
    const struct plan *p = &e->plan;
    char a[32], b[32], c[32];
    return status_context(st,
        "a micro-batch of %lld sequences of %lld tokens needs on %s: activations between layers %s, saved for backward "
        "%s, work space %s; a smaller batch.micro needs less%s",
        (long long)p->batch, (long long)p->seq, sherd_device_name(e->dev),
        text_human_bytes((double)p->memory.activation, a), text_human_bytes((double)p->memory.saved, b),
        text_human_bytes((double)p->memory.scratch, c),
        p->layout.trained && p->recompute != SHERD_RECOMPUTE_BLOCK ? ", and so does train.recompute" : "");
}

static int alloc_layers(struct sherd_engine *e)
{
    const struct sherd_memory *m = &e->plan.memory;
    int st = m->activation ? sherd_device_alloc(e->dev, &e->activation, m->activation) : SHERD_OK;
    if (st == SHERD_OK && m->saved)
        st = sherd_device_alloc(e->dev, &e->saved, m->saved);
    if (st == SHERD_OK && m->scratch)
        st = sherd_device_alloc(e->dev, &e->scratch, m->scratch);
    return st == SHERD_ENOMEM ? no_memory(e, st) : st;
}

static int alloc_work(struct sherd_engine *e)
{
    const struct plan *p = &e->plan;
    const struct sherd_memory *m = &p->memory;
    int most = 0;
    for (int u = 0; u < p->layout.n_units; u++)
        most = MAX(most, p->layout.units[u].n_params);
    e->weights = mem_zalloc((size_t)most, sizeof(*e->weights));
    e->gradients = mem_zalloc((size_t)most, sizeof(*e->gradients));
    e->fresh = mem_zalloc((size_t)most, 1);
    e->fresh_units = mem_zalloc((size_t)p->layout.n_units, 1);
    if (!e->weights || !e->gradients || !e->fresh || !e->fresh_units)
        return SHERD_ENOMEM;
    SHERD_TRY(alloc_layers(e));
    for (int u = 0; u < p->layout.n_units; u++)
        if (p->lent[u])
            SHERD_TRY(store_lend(&e->store, u, (char *)e->saved + p->layers[p->lender[u]].saved, e->compute));
    SHERD_TRY(sherd_device_alloc(e->dev, &e->batch, m->batch));
    e->scalars = e->batch;
    SHERD_TRY(sherd_host_alloc(e->dev, (void **)&e->host_scalars, p->scalar_bytes));
    memset(e->host_scalars, 0, p->scalar_bytes);
    SHERD_TRY(sherd_event_create(&e->scalars_ready, e->dev));
    SHERD_TRY(sherd_event_create(&e->clipped, e->dev));
    SHERD_TRY(sherd_event_create(&e->ended, e->dev));
    for (int i = 0; i < PLAN_BATCH_SLOTS; i++) {
        struct engine_batch_slot *slot = &e->batches[i];
        char *at = (char *)e->batch + p->scalar_bytes + (size_t)(2 * i) * p->token_bytes;
        slot->tokens = (int32_t *)at;
        slot->targets = (int32_t *)(at + p->token_bytes);
        SHERD_TRY(sherd_host_alloc(e->dev, (void **)&slot->host, 2 * p->token_bytes));
        SHERD_TRY(sherd_event_create(&slot->done, e->dev));
    }
    return SHERD_OK;
}

/* What all ranks must have the same: otherwise collectives would not meet, or sum what does not belong
 * together. */
struct same {
    uint64_t settings, tensors, program;
};

/* Of what a run computes; its folder, device and threads are each rank's own. */
static int hash_settings(uint64_t *out, const struct sherd_config *c)
{
    static const char *const sections[] = { "shard", "dtype", "batch", "optim", "schedule", "train",
        "check" };
    struct text t = { 0 };
    char *all = NULL;
    text_add(&t, "%lld %d", (long long)c->run.seed, c->run.deterministic);
    for (size_t s = 0; s < ARRAY_LEN(sections); s++)
        for (int i = 0; i < key_count(); i++)
            if (key_in_section(key_at(i), sections[s])) {
                text_add(&t, "\n%s: ", key_at(i)->path);
                key_print(key_at(i), c, &t);
            }
    SHERD_TRY(text_take(&t, &all));
    *out = sum_hash64(all, strlen(all), 0);
    mem_free(all);
    return SHERD_OK;
}

static uint64_t hash_tensors(const struct shard_layout *layout)
{
    uint64_t hash = 0;
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        const int64_t place[] = { t->unit, t->segment, t->offset, t->elems, t->flags };
        hash = sum_hash64(t->name, strlen(t->name), sum_hash64(place, sizeof(place), hash));
    }
    return hash;
}

static int compare_plans(struct sherd_engine *e, const struct sherd_config *c)
{
    int world = sherd_comm_size(e->comm);
    struct same mine = { .tensors = hash_tensors(&e->plan.layout),
        .program = program_hash(&e->plan.program) };
    struct same *all = mem_zalloc((size_t)world, sizeof(*all));
    int st = all ? hash_settings(&mine.settings, c) : SHERD_ENOMEM;
    e->run = MAX(1, sum_hash64(&mine, sizeof(mine), 0));
    st = comm_agree(e->comm, st);
    if (st == SHERD_OK)
        st = comm_host_gather(e->comm, all, &mine, sizeof(mine));
    for (int r = 0; r < world && st == SHERD_OK; r++) {
        const char *what = all[r].settings != mine.settings ? "other settings"
                           : all[r].tensors != mine.tensors ? "another model"
                           : all[r].program != mine.program ? "another step program"
                                                            : NULL;
        if (what)
            st = SHERD_FAIL(SHERD_ECONFIG, "rank %d has %s than rank %d; all ranks must read the same files",
                r, what, sherd_comm_rank(e->comm));
    }
    mem_free(all);
    return st;
}

static int hosts_of(const struct sherd_world *world)
{
    return (world->size + world->local_size - 1) / world->local_size;
}

static int check_desc(struct sherd_engine **out, const struct sherd_engine_desc *desc)
{
    const char *missing = !out            ? "out"
                          : !desc         ? "desc"
                          : !desc->config ? "config"
                          : !desc->model  ? "model"
                          : !desc->device ? "device"
                                          : NULL;
    return missing ? SHERD_FAIL(SHERD_EINVAL, "an engine needs config, model and device; %s is NULL", missing)
                   : SHERD_OK;
}

int sherd_engine_create_blank(struct sherd_engine **out, const struct sherd_engine_desc *desc)
{
    int st = SHERD_OK;
    if (out)
        *out = NULL;
    SHERD_TRY(check_desc(out, desc));
    struct sherd_engine *e = mem_zalloc(1, sizeof(*e));
    if (!e) /* the others are on their way to the first agreement */
        return desc->comm ? comm_agree(desc->comm, SHERD_ENOMEM) : SHERD_ENOMEM;
    keep_config(&e->config, desc->config);
    e->steps = desc->config->train.steps;
    scale_init(&e->scale, desc->config);
    e->model = desc->model;
    e->dev = desc->device;
    e->comm = desc->comm;
    if (!e->comm) {
        struct sherd_comm_desc single = { .world = { .rank = 0, .size = 1, .local_size = 1 } };
        SHERD_TRY_OUT(sherd_comm_open(&e->own_comm, e->dev, &single));
        e->comm = e->own_comm;
    }
    st = watch_start(e->comm, "init: plan");
    if (st == SHERD_OK)
        st = plan_init(&e->plan, desc->config, e->model, e->dev->ops->kind, sherd_comm_size(e->comm),
            hosts_of(&e->comm->world));
    SHERD_TRY_OUT(comm_agree(e->comm, st));
    SHERD_TRY_OUT(compare_plans(e, desc->config));
    SHERD_TRY_OUT(comm_agree(e->comm, open_queues(e)));
    SHERD_TRY_OUT(open_comms(e));
    st = watch_start(e->comm, "init: memory");
    if (st == SHERD_OK)
        st = watch_init(e);
    if (st == SHERD_OK)
        st = store_init(&e->store, &e->plan.memory_desc, sherd_comm_rank(e->comm), e->dev);
    if (st == SHERD_OK)
        st = alloc_work(e);
    if (st == SHERD_OK)
        st = graph_init(e, desc->config);
    SHERD_TRY_OUT(comm_agree(e->comm, st));
    if (e->config.shard.reduce == SHERD_REDUCE_BY_COPY && !e->plan.memory_desc.landing &&
        sherd_comm_rank(e->comm) == 0)
        log_warn("shard.reduce: copy is for GPUs of one host; gradients are summed as with kernel here");
    st = store_expose(&e->store, e->comm, e->reduce_comm);
    SHERD_KEEP(st, watch_start(e->comm, "init: weights"));
    SHERD_TRY_OUT(comm_agree(e->comm, st));
    e->blank = 1;
out:
    if (st != SHERD_OK) {
        sherd_engine_destroy(e);
        return st;
    }
    *out = e;
    return SHERD_OK;
}

int sherd_engine_create(struct sherd_engine **out, const struct sherd_engine_desc *desc)
{
    struct sherd_engine *e = NULL;
    if (out)
        *out = NULL;
    SHERD_TRY(sherd_engine_create_blank(out ? &e : NULL, desc));
    int st = engine_init_weights(e);
    if (st != SHERD_OK) {
        sherd_engine_destroy(e);
        return st;
    }
    *out = e;
    return SHERD_OK;
}

int engine_check(const struct sherd_engine *e)
{
    if (!e)
        return SHERD_FAIL(SHERD_EINVAL, "the engine is NULL: was it made, and its status looked at?");
    return e->broken[0]
               ? SHERD_FAIL(SHERD_EINVAL,
                     "this engine failed half-way before; destroy it and load a checkpoint into a new one. "
                     "It failed first with: %s",
                     e->broken)
               : SHERD_OK;
}

int engine_check_weights(const struct sherd_engine *e)
{
    SHERD_TRY(engine_check(e));
    return e->blank ? SHERD_FAIL(SHERD_EINVAL,
                          "the engine was made without weights: load a checkpoint, or import a model, first")
                    : SHERD_OK;
}

void sherd_engine_destroy(struct sherd_engine *e)
{
    if (!e)
        return;
    if (e->comm)
        comm_compare(e->comm, 0); /* it may outlive the engine */
    profile_destroy(e->profile);
    ckpt_saver_destroy(e->saver);
    graph_finish(e);
    if (e->gather_queue && e->gather_queue != e->compute)
        sherd_queue_destroy(e->gather_queue);
    if (e->reduce_queue && e->reduce_queue != e->compute)
        sherd_queue_destroy(e->reduce_queue);
    if (e->update_queue && e->update_queue != e->compute)
        sherd_queue_destroy(e->update_queue);
    sherd_queue_destroy(e->compute);
    exposed_finish(&e->exposed);
    store_conceal(&e->store, e->comm, e->reduce_comm);
    store_finish(&e->store);
    for (int i = 0; i < PLAN_BATCH_SLOTS; i++) {
        sherd_host_free(e->dev, e->batches[i].host);
        sherd_event_destroy(e->batches[i].done);
    }
    sherd_event_destroy(e->scalars_ready);
    sherd_event_destroy(e->clipped);
    sherd_event_destroy(e->ended);
    sherd_host_free(e->dev, e->host_scalars);
    sherd_device_free(e->dev, e->activation);
    sherd_device_free(e->dev, e->saved);
    sherd_device_free(e->dev, e->scratch);
    sherd_device_free(e->dev, e->batch);
    sherd_comm_close(e->reduce_comm);
    sherd_comm_close(e->own_comm);
    plan_finish(&e->plan);
    mem_free(e->weights);
    mem_free(e->gradients);
    mem_free(e->fresh);
    mem_free(e->fresh_units);
    watch_finish(e);
    mem_free(e);
}

int engine_settle(struct sherd_engine *e)
{
    struct sherd_queue *const queues[] = { e->compute, e->reduce_queue, e->gather_queue, e->update_queue };
    int st = graph_flush(e);
    for (size_t i = 0; i < ARRAY_LEN(queues); i++)
        SHERD_KEEP(st, sherd_queue_sync(queues[i]));
    return st;
}

void engine_sent(const struct sherd_engine *e, uint64_t out[SHERD_COLLECTIVES])
{
    struct sherd_comm_counters gather, reduce;
    sherd_comm_read(e->comm, &gather);
    sherd_comm_read(e->reduce_comm, &reduce);
    for (int i = 0; i < SHERD_COLLECTIVES; i++)
        out[i] = gather.bytes[i] + reduce.bytes[i];
}

int64_t sherd_engine_steps(const struct sherd_engine *e)
{
    return e->step;
}

void sherd_engine_memory(const struct sherd_engine *e, struct sherd_memory *out)
{
    *out = e->plan.memory;
}

/* Most batches any rank brings: all run that many, those with fewer run empty ones. */
static int most_batches(struct sherd_engine *e, int n, int *most)
{
    int world = sherd_comm_size(e->comm);
    int *all = mem_zalloc((size_t)world, sizeof(int));
    if (!all)
        return SHERD_ENOMEM;
    int st = comm_host_gather(e->comm, all, &n, sizeof(n));
    *most = 0;
    for (int r = 0; r < world; r++)
        *most = MAX(*most, all[r]);
    mem_free(all);
    return st;
}

static int read_scalars(struct sherd_engine *e)
{
    SHERD_TRY(sherd_copy(
        e->compute, &(struct sherd_copy){
                        .dst = e->host_scalars, .src = e->scalars, .bytes = SCALAR_RATES * sizeof(double) }));
    return sherd_queue_sync(e->compute);
}

/* Forward only over n batches; loss sum and count over all ranks land in the host scalars. */
static int forward_only(struct sherd_engine *e, const struct sherd_batch *batches, int n, float *logits)
{
    static const struct sherd_batch nothing = { 0 };
    int most, world = sherd_comm_size(e->comm);
    double own[2] = { 0, 0 };
    SHERD_TRY(engine_settle(e)); /* an update still reads the scalars */
    SHERD_TRY(most_batches(e, n, &most));
    SHERD_TRY(
        sherd_fill(e->compute, &(struct sherd_fill){ .dst = e->scalars, .bytes = e->plan.scalar_bytes }));
    for (int i = 0; i < most; i++)
        SHERD_TRY(step_micro(e, PROGRAM_EVAL, i < n ? &batches[i] : &nothing, i, logits));
    SHERD_TRY(read_scalars(e));
    own[0] = e->host_scalars[SCALAR_OWN_LOSS];
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < batches[i].batch * e->plan.seq; k++)
            own[1] += batches[i].targets[k] >= 0;
    double *all = mem_zalloc(2 * (size_t)world, sizeof(double));
    if (!all)
        return SHERD_ENOMEM;
    int st = comm_host_gather(e->comm, all, own, sizeof(own));
    e->host_scalars[SCALAR_LOSS] = e->host_scalars[SCALAR_COUNT] = 0;
    for (int r = 0; r < world; r++) {
        e->host_scalars[SCALAR_LOSS] += all[2 * r];
        e->host_scalars[SCALAR_COUNT] += all[2 * r + 1];
    }
    mem_free(all);
    return st;
}

int sherd_engine_eval(
    struct sherd_engine *e, const struct sherd_batch *batches, int n, double *loss, int64_t *tokens)
{
    SHERD_TRY(engine_check_weights(e));
    SHERD_TRY(step_check_batches(e, batches, n));
    int st = watch_part(e, WATCH_OTHER, "evaluate");
    if (st == SHERD_OK)
        st = forward_only(e, batches, n, NULL);
    if (st != SHERD_OK)
        return step_give_up(e, st);
    double count = e->host_scalars[SCALAR_COUNT];
    if (loss)
        *loss = count > 0 ? e->host_scalars[SCALAR_LOSS] / count : 0.0;
    if (tokens)
        *tokens = (int64_t)count;
    return SHERD_OK;
}

int sherd_engine_logits(struct sherd_engine *e, const struct sherd_batch *batch, float *logits)
{
    SHERD_TRY(engine_check_weights(e));
    int64_t vocab = e->plan.spec->vocab;
    if (vocab == 0)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "this model has no vocabulary, so it has no logits");
    SHERD_TRY(step_check_batches(e, batch, 1));
    size_t bytes = (size_t)(batch->batch * e->plan.seq * vocab) * sizeof(float);
    void *dev = NULL;
    int st = bytes ? sherd_device_alloc(e->dev, &dev, bytes) : SHERD_OK;
    if (st == SHERD_OK)
        st = forward_only(e, batch, 1, dev);
    if (st == SHERD_OK && bytes)
        st = sherd_copy(e->compute, &(struct sherd_copy){ .dst = logits, .src = dev, .bytes = bytes });
    SHERD_KEEP(st, sherd_queue_sync(e->compute));
    sherd_device_free(e->dev, dev);
    return st == SHERD_OK ? st : step_give_up(e, st);
}

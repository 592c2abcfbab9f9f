/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Recording and launching whole steps: see runtime/graph.h. Only addresses and shapes are in the recording;
 * tokens, counts and the optimizer's rates are read from host memory that each launch copies from.
 */
#include "runtime/graph.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "runtime/engine.h"

#define WARM_STEPS 2 /* libraries choose their ways and ranks connect, then all stays as it is */

int graph_init(struct sherd_engine *e, const struct sherd_config *c)
{
    struct engine_graph *g = &e->graph;
    int can = device_captures(e->dev);
    if (c->run.graph == SHERD_GRAPH_ON && !can)
        return SHERD_FAIL(SHERD_ECONFIG,
            "run.graph: device %s cannot keep a step as one piece of work; set it to auto or off",
            e->dev->name);
    g->must = c->run.graph == SHERD_GRAPH_ON;
    g->mode = can && (g->must || (c->run.graph == SHERD_GRAPH_AUTO && e->dev->ops->behind)) ? SHERD_GRAPH_ON
                                                                                            : SHERD_GRAPH_OFF;
    if (g->mode == SHERD_GRAPH_OFF)
        return SHERD_OK;
    g->all = mem_zalloc((size_t)sherd_comm_size(e->comm), 1);
    if (!g->all)
        return SHERD_ENOMEM;
    SHERD_TRY(sherd_event_create(&g->fork, e->dev));
    for (size_t i = 0; i < ARRAY_LEN(g->join); i++)
        SHERD_TRY(sherd_event_create(&g->join[i], e->dev));
    return SHERD_OK;
}

void graph_finish(struct sherd_engine *e)
{
    struct engine_graph *g = &e->graph;
    device_graph_destroy(e->dev, g->kept);
    device_graph_destroy(e->dev, g->timed);
    sherd_event_destroy(g->fork);
    for (size_t i = 0; i < ARRAY_LEN(g->join); i++)
        sherd_event_destroy(g->join[i]);
    sherd_host_free(e->dev, g->host);
    mem_free(g->all);
    *g = (struct engine_graph){ .mode = SHERD_GRAPH_OFF };
}

int graph_takes(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, int *yes)
{
    struct engine_graph *g = &e->graph;
    unsigned char can = !e->comm->compare; /* which looks at every collective as it is brought */
    *yes = 0;
    if (g->mode == SHERD_GRAPH_OFF)
        return SHERD_OK;
    if (g->warm < WARM_STEPS) {
        g->warm++;
        return SHERD_OK;
    }
    for (int i = 0; i < n_micro; i++)
        can &= micro[i].batch == e->plan.batch;
    SHERD_TRY(comm_host_gather(e->comm, g->all, &can, sizeof(can)));
    *yes = 1;
    for (int r = 0; r < sherd_comm_size(e->comm); r++)
        *yes &= g->all[r];
    return SHERD_OK;
}

int32_t *graph_tokens(struct sherd_engine *e, int index)
{
    struct engine_graph *g = &e->graph;
    return g->capturing ? g->host + (size_t)index * 2 * (e->plan.token_bytes / sizeof(int32_t)) : NULL;
}

int graph_flush(struct sherd_engine *e)
{
    struct engine_graph *g = &e->graph;
    if (!g->pending)
        return SHERD_OK;
    g->pending = 0;
    return step_updates(e, g->step);
}

/* ---- recording ---- */

/* All queues join what is recorded, and at its end the compute queue has waited for all. */
static int body(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, int timed)
{
    struct engine_graph *g = &e->graph;
    struct sherd_queue *const side[] = { e->gather_queue, e->reduce_queue, e->update_queue };
    SHERD_TRY(sherd_event_record(g->fork, e->compute));
    for (size_t i = 0; i < ARRAY_LEN(side); i++)
        SHERD_TRY(sherd_event_wait(side[i], g->fork));
    if (timed)
        SHERD_TRY(profile_step_begin(e->profile, e->step + 1));
    SHERD_TRY(sherd_copy(e->update_queue, &(struct sherd_copy){ .dst = e->scalars + SCALAR_RATES,
                                              .src = e->host_scalars + SCALAR_RATES,
                                              .bytes = sizeof(struct sherd_rates) }));
    SHERD_TRY(step_updates(e, e->step + 1)); /* by its rates; of the step only that it is not the first */
    SHERD_TRY(step_run(e, micro, n_micro));
    SHERD_TRY(profile_part_begin(e->profile, "join"));
    for (size_t i = 0; i < ARRAY_LEN(side); i++) {
        SHERD_TRY(sherd_event_record(g->join[i], side[i]));
        SHERD_TRY(sherd_event_wait(e->compute, g->join[i]));
    }
    SHERD_TRY(profile_part_end(e->profile));
    return profile_step_end(e->profile);
}

struct counts {
    uint64_t ops;
    double flops;
    struct sherd_comm_counters sent[2];
};

static struct counts read_counts(const struct sherd_engine *e)
{
    return (struct counts){ __atomic_load_n(&e->dev->op_calls, __ATOMIC_RELAXED), e->dev->flops,
        { e->comm->counters, e->reduce_comm->counters } };
}

static void add_sent(struct sherd_comm_counters *to, const struct sherd_comm_counters *more)
{
    for (int i = 0; i < SHERD_COLLECTIVES; i++) {
        to->calls[i] += more->calls[i];
        to->bytes[i] += more->bytes[i];
    }
}

/* What was counted while recording was not done: it counts at each launch. What a save did meanwhile was
 * done, and is counted apart. */
static void take_counts(struct sherd_engine *e, const struct counts *before)
{
    struct engine_graph *g = &e->graph;
    struct counts after = read_counts(e);
    g->ops = after.ops - before->ops;
    g->flops = after.flops - before->flops;
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < SHERD_COLLECTIVES; i++) {
            g->sent[c].calls[i] = after.sent[c].calls[i] - before->sent[c].calls[i];
            g->sent[c].bytes[i] = after.sent[c].bytes[i] - before->sent[c].bytes[i];
        }
    __atomic_sub_fetch(&e->dev->op_calls, g->ops, __ATOMIC_RELAXED);
    e->dev->flops = before->flops;
    e->comm->counters = before->sent[0];
    e->reduce_comm->counters = before->sent[1];
}

static void add_counts(struct sherd_engine *e)
{
    const struct engine_graph *g = &e->graph;
    __atomic_add_fetch(&e->dev->op_calls, g->ops, __ATOMIC_RELAXED);
    e->dev->flops += g->flops;
    add_sent(&e->comm->counters, &g->sent[0]);
    add_sent(&e->reduce_comm->counters, &g->sent[1]);
}

static int record(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, int timed, void **out)
{
    struct engine_graph *g = &e->graph;
    struct counts before = read_counts(e);
    void *kept = NULL;
    int steps = e->profile ? e->profile->n_steps : 0;
    SHERD_TRY(device_capture_begin(e->compute));
    g->capturing = 1;
    exposed_begin(&e->exposed);
    int st = body(e, micro, n_micro, timed), begun = e->profile ? e->profile->n_steps : 0;
    g->capturing = 0;
    exposed_end(&e->exposed);
    g->stamps = e->exposed.n;
    SHERD_KEEP(st, device_capture_end(e->compute, &kept));
    take_counts(e, &before);
    if (st == SHERD_OK)
        *out = kept;
    else
        device_graph_destroy(e->dev, kept);
    if (st != SHERD_OK && begun > steps)
        profile_drop(e->profile);
    return st;
}

static int make_room(struct sherd_engine *e, int n_micro)
{
    struct engine_graph *g = &e->graph;
    if (g->n_micro == n_micro)
        return SHERD_OK;
    device_graph_destroy(e->dev, g->kept);
    g->kept = NULL;
    sherd_host_free(e->dev, g->host);
    g->host = NULL;
    g->n_micro = 0;
    int st = sherd_host_alloc(e->dev, (void **)&g->host, (size_t)n_micro * 2 * e->plan.token_bytes);
    SHERD_TRY(status_context(st, "host memory for the tokens of a recorded step"));
    g->n_micro = n_micro;
    return SHERD_OK;
}

/* A timed step is recorded for itself, with its marks in it. */
static int prepare(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, int timed)
{
    struct engine_graph *g = &e->graph;
    SHERD_TRY(engine_settle(e));
    SHERD_TRY(make_room(e, n_micro));
    device_graph_destroy(e->dev, g->timed);
    g->timed = NULL;
    return record(e, micro, n_micro, timed, timed ? &g->timed : &g->kept);
}

/* ---- launching ---- */

/* Everything that a launch reads from the host. Where no update is pending, a factor that is not a number
 * makes those at the begin do nothing. */
static int stage(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro)
{
    struct engine_graph *g = &e->graph;
    size_t each = e->plan.token_bytes / sizeof(int32_t);
    size_t bytes = (size_t)(e->plan.batch * e->plan.seq) * sizeof(int32_t);
    for (int i = 0; i < n_micro; i++) {
        int32_t *host = g->host + (size_t)i * 2 * each;
        memcpy(host, micro[i].tokens, bytes);
        memcpy(host + each, micro[i].targets, bytes);
    }
    struct optim_hyper hyper = step_hyper(e, g->pending ? g->step : 1);
    struct sherd_rates rates = optim_rates(&hyper);
    memcpy(e->host_scalars + SCALAR_RATES, &rates, sizeof(rates));
    if (g->pending) /* the last step was launched too, and the compute queue has waited for all of it */
        return step_await_copies(e, e->compute);
    SHERD_TRY(engine_settle(e));
    return sherd_fill(e->compute,
        &(struct sherd_fill){ .dst = e->scalars + SCALAR_FACTOR, .bytes = sizeof(double), .byte = 0xff });
}

/* It could not be recorded: told once, and from now on all steps are ordinary. */
static int give_up(struct sherd_engine *e, int st)
{
    if (e->graph.must)
        return status_context(st, "run.graph");
    if (sherd_comm_rank(e->comm) == 0)
        log_info(
            "steps are not kept as one piece of work here (run.graph: off saves the try): %s", sherd_error());
    e->graph.mode = SHERD_GRAPH_OFF;
    return SHERD_OK;
}

int graph_step(struct sherd_engine *e, const struct sherd_batch *micro, int n_micro, int timed, int *taken)
{
    struct engine_graph *g = &e->graph;
    int st = SHERD_OK;
    *taken = 0;
    SHERD_TRY(watch_part(e, WATCH_OTHER, "the step as one piece of work"));
    if (timed || !g->kept || g->n_micro != n_micro)
        st = comm_agree(e->comm, prepare(e, micro, n_micro, timed));
    if (st != SHERD_OK)
        return give_up(e, st);
    *taken = 1;
    SHERD_TRY(stage(e, micro, n_micro));
    if (timed)
        profile_launched(e->profile);
    SHERD_TRY(device_graph_launch(e->compute, timed ? g->timed : g->kept));
    add_counts(e);
    e->exposed.n = g->stamps;
    g->launches++;
    g->pending = 1;
    g->step = e->step + 1;
    return SHERD_OK;
}

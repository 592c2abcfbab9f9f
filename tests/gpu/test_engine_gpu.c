/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The engine on two GPUs: every stage, with and without overlap, at every prefetch, with released buffers
 * poisoned and with slow communication, gives the same bits; two equal runs do; the CPU gives nearly the same
 * losses; and the memory that the GPU says is used is what was planned.
 */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/sherd.h>

#include "base/rng.h"
#include "base/sum.h"
#include "runtime/engine.h"
#include "tests/gpu/gpus.h"
#include "tests/settings.h"
#include "tests/t.h"

#define STEPS 6
#define MOST_STEPS 20
#define MOST_TRIALS 16
#define RANKS 2

struct trial {
    int plain; /* number of the trial whose bits this one must give; its own: of none */
    struct sherd_model_config model;
    int stage, prefetch, overlap, poison, graph, uneven, micro, accum, seq, steps;
    unsigned delay_us; /* before each collective, and half as much on rank 0 */
    enum sherd_dtype param, reduce, state;
    enum sherd_master master;
    enum sherd_recompute recompute;
    enum sherd_reduce_by way;
    /* of rank 0 */
    struct sherd_step_stats stats[MOST_STEPS];
    uint64_t weights; /* hash over all tensors */
    /* bytes: less free than before, in libraries, in allocations, planned */
    uint64_t used, libraries, allocated, planned, landing;
    int64_t launches;
};

static struct trial small(void)
{
    return (struct trial){ .model = { .family = "llama",
                               .vocab = 101,
                               .width = 64,
                               .layers = 3,
                               .heads = 4,
                               .kv_heads = 2,
                               .mlp_width = 160,
                               .context = 64,
                               .tied = 1 },
        .prefetch = 1,
        .overlap = 1,
        .micro = 3,
        .accum = 1,
        .seq = 64,
        .steps = STEPS,
        .param = SHERD_F32,
        .reduce = SHERD_F32,
        .state = SHERD_F32 };
}

static void set(struct sherd_config *c, const struct trial *t)
{
    T_OK(sherd_config_default(c));
    SETTINGS_TAKE(c, t, RANKS);
    c->run.deterministic = 1;
    c->shard.reduce = t->way;
    c->optim.lr = 1e-3;
    c->schedule.warmup = 2;
    c->train.steps = 100;
}

static void train(struct trial *t, int rank, struct sherd_engine *e)
{
    int64_t n = (int64_t)t->micro * t->seq;
    int32_t *rows = malloc((size_t)(2 * n) * sizeof(*rows));
    struct sherd_batch micro[4];
    T_TRUE(rows && t->accum <= 4);
    for (int s = 0; s < t->steps; s++) {
        for (int64_t i = 0; i < n; i++) {
            uint64_t x = t_bits((uint64_t)(s * RANKS + rank), (uint64_t)i);
            rows[i] = (int32_t)(x % (uint64_t)t->model.vocab);
            rows[n + i] = (x >> 32) % 9 ? (int32_t)((x >> 16) % (uint64_t)t->model.vocab) : -1;
        }
        for (int m = 0; m < t->accum; m++)
            micro[m] = (struct sherd_batch){ rows, rows + n, t->micro };
        if (s + 1 == t->uneven && rank == 0)
            micro[0].batch--;
        struct sherd_step_stats stats;
        T_OK(sherd_engine_step(e, micro, t->accum, &stats));
        if (rank == 0)
            t->stats[s] = stats;
    }
    free(rows);
}

static void hash_weights(struct trial *t, int rank, struct sherd_engine *e)
{
    const struct shard_layout *layout = &e->plan.layout;
    uint64_t hash = 0;
    for (int i = 0; i < layout->n_tensors; i++) {
        int64_t n = layout->tensors[i].elems;
        float *x = malloc((size_t)n * sizeof(*x));
        T_OK(sherd_engine_tensor(e, "weight", layout->tensors[i].name, x, n));
        hash = sum_hash64(x, (size_t)n * sizeof(*x), hash);
        free(x);
    }
    if (rank == 0)
        t->weights = hash;
}

static void run_one(int rank, struct sherd_comm *comm, struct sherd_device *dev, struct trial *t)
{
    struct sherd_config c;
    struct sherd_model *model;
    struct sherd_engine *e;
    size_t total, before, after;
    struct sherd_device_counters held, now;
    set(&c, t);
    T_OK(sherd_model_build(&model, &t->model));
    T_OK(sherd_device_memory(dev, &total, &before));
    sherd_device_read(dev, &held);
    T_OK(sherd_engine_create(&e, &(struct sherd_engine_desc){ &c, model, dev, comm }));
    e->comm->delay_us = e->reduce_comm->delay_us = rank ? t->delay_us : t->delay_us / 2;
    train(t, rank, e);
    sherd_device_read(dev, &now);
    T_OK(sherd_device_memory(dev, &total, &after));
    if (rank == 0) {
        struct sherd_memory m;
        t->launches = e->graph.launches;
        sherd_engine_memory(e, &m);
        t->used = before - after;
        t->libraries = now.library_bytes - held.library_bytes;
        t->allocated = now.bytes - held.bytes;
        t->landing = m.landing;
        t->planned = sherd_memory_total(&m);
    }
    if (t->model.width < 1000)
        hash_weights(t, rank, e);
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

struct trials {
    int n;
    struct trial t[MOST_TRIALS];
};

static void run(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct trials *all = ctx;
    for (int i = 0; i < all->n; i++)
        run_one(rank, comm, dev, &all->t[i]);
}

/* The trials as they ran, one after the other in the same two processes: to start these takes longer than a
 * small trial. Results come back through memory that the ranks share with the test. */
static void results_of(struct trials *all)
{
    struct trials *shared = t_shared(sizeof(*shared));
    *shared = *all;
    t_ranks(RANKS, T_PROCESSES, run, shared);
    *all = *shared;
    t_shared_free(shared, sizeof(*shared));
}

static struct trial *append(struct trials *all, struct trial t, int plain)
{
    assert_true(all->n < MOST_TRIALS);
    t.plain = plain;
    all->t[all->n] = t;
    return &all->t[all->n++];
}

static struct trial *add(struct trials *all, struct trial t)
{
    return append(all, t, all->n);
}

/* One that must give the bits of the last that was added on its own. */
static struct trial *add_alike(struct trials *all, struct trial t)
{
    return append(all, t, all->t[all->n - 1].plain);
}

static void describe(char *out, size_t bytes, const struct trial *t)
{
    snprintf(out, bytes,
        "stage %d prefetch %d overlap %d poison %d delay %u accum %d %s (%s on the wire) recompute %d master "
        "%d reduce %d graph %d",
        t->stage, t->prefetch, t->overlap, t->poison, t->delay_us, t->accum, sherd_dtype_name(t->param),
        sherd_dtype_name(t->reduce), (int)t->recompute, (int)t->master, (int)t->way, t->graph);
}

static void same(const struct trial *a, const struct trial *b)
{
    char what[256], other[256];
    describe(what, sizeof(what), a);
    describe(other, sizeof(other), b);
    for (int s = 0; s < a->steps; s++)
        if (a->stats[s].loss != b->stats[s].loss || a->stats[s].grad_norm != b->stats[s].grad_norm)
            fail_msg("step %d: loss %.12g norm %.12g with %s; %.12g %.12g with %s", s + 1, a->stats[s].loss,
                a->stats[s].grad_norm, what, b->stats[s].loss, b->stats[s].grad_norm, other);
    if (a->weights != b->weights)
        fail_msg("the weights differ: %s; %s", what, other);
}

/* Runs them, and compares those that must be alike. */
static void run_alike(struct trials *all)
{
    results_of(all);
    for (int i = 0; i < all->n; i++)
        if (all->t[i].plain != i)
            same(&all->t[i], &all->t[all->t[i].plain]);
}

static void test_stages(void **state)
{
    (void)state;
    for (int type = 0; type < 3; type++) {
        struct trials all = { 0 };
        struct trial base = small();
        base.param = type ? SHERD_BF16 : SHERD_F32;
        base.reduce = type == 2 ? SHERD_BF16 : SHERD_F32;
        add(&all, base);
        for (base.stage = 0; base.stage <= 3; base.stage++)
            add_alike(&all, base);
        run_alike(&all);
        assert_true(all.t[0].stats[STEPS - 1].loss < all.t[0].stats[0].loss + 0.5);
    }
}

static void test_order(void **state)
{
    (void)state;
    struct trials all = { 0 };
    for (int stage = 2; stage <= 3; stage++) {
        struct trial base = small();
        base.stage = stage;
        base.accum = 2;
        base.overlap = 0;
        add(&all, base);
        base.overlap = base.poison = 1;
        for (base.prefetch = 0; base.prefetch <= 2; base.prefetch++)
            add_alike(&all, base);
    }
    run_alike(&all);
}

/* Communication that is late, by other amounts on each rank: nothing may be read before it is there, nor
 * written before it is read. */
static void test_slow(void **state)
{
    (void)state;
    struct trials all = { 0 };
    for (int stage = 0; stage <= 3; stage++) {
        struct trial base = small();
        base.stage = stage;
        base.accum = 2;
        add(&all, base);
        base.poison = 1;
        base.delay_us = 400;
        int most = stage == 3 ? 2 : 1;
        for (base.prefetch = stage == 3 ? 0 : 1; base.prefetch <= most; base.prefetch++)
            add_alike(&all, base);
    }
    run_alike(&all);
}

/* The same sums in another order, through 20 updates. Adam divides by the root of small squares, so that the
 * last bits of a gradient grow in the first steps. */
#define CPU_BOUND 1e-4

static void test_cpu(void **state)
{
    (void)state;
    struct trials gpu = { 0 }, cpu;
    for (int stage = 0; stage <= 3; stage += 3) {
        struct trial base = small();
        base.stage = stage;
        base.steps = MOST_STEPS;
        add(&gpu, base);
    }
    cpu = gpu;
    results_of(&gpu);
    t_device("cpu");
    results_of(&cpu);
    t_device("cuda");
    for (int i = 0; i < gpu.n; i++) {
        double worst = 0;
        for (int s = 0; s < MOST_STEPS; s++)
            worst = fmax(worst, fabs(gpu.t[i].stats[s].loss / cpu.t[i].stats[s].loss - 1));
        printf("stage %d: losses of GPU and CPU are %.2g apart at most over %d steps, allowed %.0g\n",
            gpu.t[i].stage, worst, MOST_STEPS, CPU_BOUND);
        assert_true(worst <= CPU_BOUND);
    }
}

/* Steps that are launched whole are those that are submitted one instruction at a time: bit for bit, with
 * sums over micro-batches, with bf16 on the wire, and around a step that cannot be launched. */
static void test_graph(void **state)
{
    (void)state;
    struct trials plain = { 0 }, kept;
    for (int stage = 0; stage <= 3; stage++)
        for (int kind = 0; kind < 4; kind++) {
            struct trial base = small();
            base.stage = stage;
            base.accum = kind == 1 ? 3 : 1;
            base.param = kind >= 2 ? SHERD_BF16 : SHERD_F32;
            base.reduce = kind == 3 ? SHERD_BF16 : SHERD_F32;
            base.uneven = kind == 0 ? 4 : 0;
            add(&plain, base);
        }
    kept = plain;
    for (int i = 0; i < kept.n; i++)
        kept.t[i].graph = 1;
    results_of(&plain);
    results_of(&kept);
    for (int i = 0; i < plain.n; i++) {
        same(&kept.t[i], &plain.t[i]);
        assert_int_equal(plain.t[i].launches, 0);
        assert_int_equal(kept.t[i].launches, STEPS - 2 - (kept.t[i].uneven != 0));
    }
}

/* Recomputing and split masters give the bits of neither; states rounded at random give the same bits at
 * every stage. */
static void test_less_memory(void **state)
{
    (void)state;
    struct trials all = { 0 }, rounded = { 0 };
    for (int stage = 0; stage <= 3; stage++) {
        struct trial base = small();
        base.stage = stage;
        base.poison = 1;
        base.param = SHERD_BF16;
        add(&all, base);
        add_alike(&all, base)->recompute = SHERD_RECOMPUTE_CHEAP;
        add_alike(&all, base)->recompute = SHERD_RECOMPUTE_BLOCK;
        base.master = SHERD_MASTER_SPLIT;
        add_alike(&all, base);
        base.state = SHERD_BF16;
        (stage ? add_alike : add)(&rounded, base);
    }
    run_alike(&all);
    run_alike(&rounded);
}

/* Units large enough for landing memory give the bits of NCCL's sums: with gradients at rest where values
 * were saved and without, late and poisoned, and recorded. */
static void test_landing(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct trials all = { 0 };
        for (int stage = 1; stage <= 3; stage++) {
            struct trial base = small();
            base.model.vocab = 4096;
            base.model.width = 512;
            base.model.mlp_width = 1408;
            base.model.context = base.seq = 128;
            base.micro = 4;
            base.stage = stage;
            base.param = half ? SHERD_BF16 : SHERD_F32;
            base.reduce = base.param;
            base.way = SHERD_REDUCE_BY_KERNEL;
            add(&all, base);
            base.way = SHERD_REDUCE_BY_COPY;
            add_alike(&all, base);
            base.poison = 1;
            base.delay_us = 400;
            add_alike(&all, base);
            base.poison = 0;
            base.delay_us = 0;
            base.graph = 1;
            add_alike(&all, base);
        }
        run_alike(&all);
        for (int i = 0; i < all.n; i++) {
            assert_int_equal(all.t[i].allocated, all.t[i].planned);
            assert_int_equal(all.t[i].landing != 0, all.t[i].way == SHERD_REDUCE_BY_COPY);
        }
    }
}

static void test_memory(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct trial t = small();
        t.model = (struct sherd_model_config){ .family = "llama",
            .vocab = 32000,
            .width = 2048,
            .layers = 22,
            .heads = 32,
            .kv_heads = 4,
            .mlp_width = 5632,
            .context = 2048,
            .any_order = 1 };
        t.stage = stage;
        t.param = SHERD_BF16;
        t.micro = 8;
        t.seq = 2048;
        t.steps = 2;
        /* What libraries take is told apart, so each stage has processes of its own. */
        struct trials one = { .n = 1, .t = { t } };
        results_of(&one);
        t = one.t[0];
        double own = (double)t.used - (double)t.libraries, off = own / (double)t.planned - 1;
        printf("1.1 B, stage %d: planned %.0f MiB, allocated %.0f MiB; used %.0f MiB, of that %.0f MiB by "
               "libraries, %.0f MiB without (%+.2f %%)\n",
            stage, (double)t.planned / 1048576, (double)t.allocated / 1048576, (double)t.used / 1048576,
            (double)t.libraries / 1048576, own / 1048576, 100 * off);
        assert_int_equal(t.allocated, t.planned);
        assert_true(off > -0.02 && off < 0.02);
    }
}

/* An argument is a pattern: only tests whose name it fits, "test_graph" or "*memory". */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_less_memory),
        cmocka_unit_test(test_landing),
        cmocka_unit_test(test_memory),
    };
    if (!gpus_two())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    t_device("cuda");
    t_limits(120, 60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd selftest: devices, their memory, and the values and rates of every collective between ranks, before a
 * run depends on them. One line a check; what fails on one rank is told with its number.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/args.h"
#include "tools/bench.h"
#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/out.h"
#include "tools/rank.h"
#include "tools/selftest.h"

#define NAME "selftest"
#define MEMORY_BYTES ((size_t)64 << 20)

static const char *const kind_names[] = {
    [SHERD_ALL_GATHER] = "all-gather",
    [SHERD_REDUCE_SCATTER] = "reduce-scatter",
    [SHERD_ALL_REDUCE] = "all-reduce",
    [SHERD_BROADCAST] = "broadcast",
};

struct options {
    const char *device;
    int64_t ranks, mib;
    double timeout;
    int json;
};

/* The checks of one rank, side by side with the others'. */
struct selftest {
    const struct options *o;
    struct bench_desc desc;
    struct sherd_queue *queue;
    void *wire; /* device memory: findings of all ranks */
    struct finding *all;
    int rank, ranks, failed;
    json_t *checks;
};

/* ---- telling ---- */

static void show(struct selftest *t, const char *name, int rank, const struct finding *f)
{
    char full[64];
    t->failed += f->wrong != 0;
    if (t->rank != 0)
        return;
    if (rank >= 0)
        snprintf(full, sizeof(full), "%s, rank %d", name, rank);
    else
        snprintf(full, sizeof(full), "%s", name);
    if (t->checks)
        json_array_append_new(
            t->checks, json_pack("{s:s, s:o, s:b, s:s, s:o}", "name", name, "rank",
                           rank >= 0 ? json_integer(rank) : json_null(), "ok", f->wrong == 0, "text", f->text,
                           "GB/s", f->has_value ? json_real(f->value) : json_null()));
    else
        printf("%-4s  %-28s %s\n", f->wrong ? "FAIL" : "ok", full, f->text);
    fflush(stdout);
}

/* Every rank's finding to all ranks, and shown. */
static int share(struct selftest *t, const char *name, const struct finding *mine)
{
    size_t each = sizeof(*mine);
    char *own = (char *)t->wire + (size_t)t->rank * each;
    int st = sherd_copy(t->queue, &(struct sherd_copy){ .dst = own, .src = mine, .bytes = each });
    if (st == SHERD_OK)
        st = sherd_all_gather(t->desc.comm, t->queue, t->wire, own, (int64_t)each, SHERD_U8);
    if (st == SHERD_OK)
        st = sherd_copy(t->queue,
            &(struct sherd_copy){ .dst = t->all, .src = t->wire, .bytes = each * (size_t)t->ranks });
    if (st == SHERD_OK)
        st = sherd_queue_sync(t->queue);
    for (int r = 0; r < t->ranks && st == SHERD_OK; r++)
        show(t, name, r, &t->all[r]);
    return st;
}

/* A check of one rank alone: what it could not do at all is its finding. */
static int check_alone(struct selftest *t, const char *name, int st, struct finding *f)
{
    if (st != SHERD_OK) {
        f->wrong = 1;
        snprintf(f->text, sizeof(f->text), "%s", sherd_error());
    }
    return share(t, name, f);
}

/* ---- checks ---- */

static int check_devices(struct selftest *t)
{
    struct finding f = { 0 };
    size_t bytes = MEMORY_BYTES / (size_t)(t->desc.local_size > 4 ? t->desc.local_size : 4);
    int st = check_alone(t, "device", selftest_device(t->desc.device, &f), &f);
    f = (struct finding){ 0 };
    if (st == SHERD_OK)
        st = check_alone(t, "memory", selftest_memory(t->desc.device, bytes, &f), &f);
    f = (struct finding){ 0 };
    if (st == SHERD_OK)
        st = check_alone(t, "product", selftest_matmul(t->desc.device, &f), &f);
    return st;
}

/* Elements of a rank: small and odd ones; then one that is large enough to show the rate. */
static const int64_t sizes[] = { 1, 3, 7, 61, 1021, 65521, 0 };
#define N_SIZES COUNT_OF(sizes)

static struct bench_shape shape_of(const struct selftest *t, enum sherd_collective kind, int i)
{
    int last = i == N_SIZES - 1, split = kind == SHERD_ALL_GATHER || kind == SHERD_REDUCE_SCATTER;
    uint64_t each = sherd_dtype_bytes(t->desc.type);
    struct bench_shape s = bench_shape(kind, (uint64_t)t->o->mib << 20, t->desc.type, t->ranks, last);
    if (last)
        return s;
    s.count = sizes[i];
    s.part = s.b = (size_t)sizes[i] * each;
    s.a = split ? s.part * (size_t)t->ranks : s.part;
    return s;
}

static double busbw(const struct bench_shape *s, double seconds, int ranks)
{
    double share = (double)(ranks - 1) / ranks;
    double factor = s->kind == SHERD_BROADCAST ? 1 : s->kind == SHERD_ALL_REDUCE ? 2 * share : share;
    return seconds > 0 ? factor * (double)s->a / seconds / 1e9 : 0;
}

static int run_sizes(struct selftest *t, struct bench *b, enum sherd_collective kind, struct finding *f)
{
    double wrong = 0;
    f->has_value = b->ranks > 1;
    for (int i = 0; i < 2 * N_SIZES; i++) {
        struct bench_shape s = shape_of(t, kind, i / 2);
        struct bench_figure figure;
        int st = bench_run(b, &s, i % 2, &figure);
        if (st != SHERD_OK)
            return st;
        wrong += figure.wrong;
        f->value = busbw(&s, figure.seconds, b->ranks); /* the last: the largest, in place */
    }
    f->wrong = wrong > 0;
    int at = snprintf(
        f->text, sizeof(f->text), "%.0f wrong values in %d sizes, in and out of place", wrong, N_SIZES);
    if (b->ranks > 1)
        snprintf(f->text + at, sizeof(f->text) - (size_t)at, "; busbw %.2f GB/s at %lld MiB", f->value,
            (long long)t->o->mib);
    return SHERD_OK;
}

static int check_collectives(struct selftest *t, enum sherd_dtype type)
{
    struct bench b = { 0 };
    struct bench_memory need[2] = { 0 };
    char name[64];
    t->desc.type = type;
    for (int kind = 0; kind < SHERD_COLLECTIVES; kind++)
        for (int i = 0; i < N_SIZES; i++) {
            struct bench_shape s = shape_of(t, (enum sherd_collective)kind, i);
            bench_need(need, &s);
        }
    int st = bench_open(&b, &t->desc, need);
    for (int kind = 0; kind < SHERD_COLLECTIVES && st == SHERD_OK; kind++) {
        struct finding f = { 0 };
        int sums = kind == SHERD_REDUCE_SCATTER || kind == SHERD_ALL_REDUCE;
        if (sums && bench_top(type, t->ranks, 1) == 0)
            continue; /* so many ranks that the type holds no exact sums */
        st = run_sizes(t, &b, (enum sherd_collective)kind, &f);
        snprintf(name, sizeof(name), "%s %s", kind_names[kind], sherd_dtype_name(type));
        if (st == SHERD_OK)
            show(t, name, -1, &f);
    }
    bench_close(&b);
    return st;
}

static int check_all(struct selftest *t)
{
    int st = sherd_queue_create(&t->queue, t->desc.device, SHERD_QUEUE_SIDE);
    t->all = calloc((size_t)t->ranks, sizeof(*t->all));
    if (!t->all)
        return sherd_fail(SHERD_ENOMEM, "no memory for the findings of %d ranks", t->ranks);
    if (st == SHERD_OK)
        st = sherd_device_alloc(t->desc.device, &t->wire, (size_t)t->ranks * sizeof(*t->all));
    if (st == SHERD_OK)
        st = check_devices(t);
    if (st == SHERD_OK)
        st = check_collectives(t, SHERD_F32);
    return st == SHERD_OK ? check_collectives(t, SHERD_BF16) : st;
}

static int conclude(struct selftest *t)
{
    if (t->rank == 0 && t->checks &&
        out_json(json_pack("{s:s, s:b, s:i, s:s, s:O}", "version", sherd_version(), "ok", t->failed == 0,
            "ranks", t->ranks, "device", t->o->device, "checks", t->checks)) != EXIT_OK)
        return sherd_fail(SHERD_EIO, "the JSON result could not be written");
    if (t->failed && t->rank == 0)
        return sherd_fail(SHERD_EDEVICE, "%d check%s failed: do not train here before that is mended",
            t->failed, t->failed == 1 ? "" : "s");
    return SHERD_OK;
}

static int run_rank(const struct options *o, const struct sherd_world *world)
{
    char name[32];
    struct selftest t = { .o = o,
        .desc = { .local_size = world->local_size, .iters = 5, .warmup = 1, .check = 1, .expose = 1 },
        .rank = world->rank,
        .ranks = world->size,
        .checks = o->json ? json_array() : NULL };
    int st = sherd_device_open(&t.desc.device,
        &(struct sherd_device_desc){ .name = rank_device(o->device, world->local_rank, name), .threads = 1 });
    if (st == SHERD_OK)
        st = sherd_comm_open(
            &t.desc.comm, t.desc.device, &(struct sherd_comm_desc){ .world = *world, .timeout = o->timeout });
    if (st == SHERD_OK)
        st = check_all(&t);
    if (st == SHERD_OK)
        st = conclude(&t);
    int code = st == SHERD_OK ? EXIT_OK : rank_failed(st, world);
    if (st != SHERD_OK && st != SHERD_EPEER && t.desc.comm && !t.failed)
        sherd_comm_abort(t.desc.comm, sherd_error());
    if (t.desc.device)
        sherd_device_free(t.desc.device, t.wire);
    sherd_queue_destroy(t.queue);
    sherd_comm_close(t.desc.comm);
    sherd_device_close(t.desc.device);
    json_decref(t.checks);
    free(t.all);
    return code;
}

int cmd_selftest(int argc, char **argv)
{
    struct options o = { .device = "cpu", .mib = 32, .timeout = 60 };
    const char *nothing = NULL;
    const struct arg args[] = {
        { "ranks", ARG_INT, &o.ranks, "N", "start N ranks on this host (default 1)", .min = 1, .max = 4096 },
        { "device", ARG_TEXT, &o.device, "NAME", "cpu, or cuda for one GPU a rank (default cpu)" },
        { "size", ARG_INT, &o.mib, "MIB", "the largest size of each collective (default 32)", .min = 1,
            .max = 65536 },
        { "timeout", ARG_REAL, &o.timeout, "SECONDS", "without progress, to fail (default 60)", .min = 0,
            .max = 1e8 },
        { "json", ARG_FLAG, &o.json, NULL, "print one JSON value instead, at the end" },
    };
    const struct command command = { NAME, "", 0, 0,
        "Checks devices, their memory, and the values and rates of every collective.",
        "Prints one line a check: ok or FAIL, what was checked, what was found. Of each rank: its device and\n"
        "which other GPUs it reaches directly; memory, by a way of random bytes through it; a product of\n"
        "matrices. Of all ranks: each collective in float32 and bfloat16, every element of several sizes, odd\n"
        "ones among them. For GPUs run it also with NCCL_P2P_DISABLE=1: links can copy rightly and still give\n"
        "wrong sums.\n\n"
        "Under torchrun, mpirun or srun each process is one rank of their world; otherwise see --ranks.\n\n"
        "Exit status: 0 all checks passed, 1 one failed, 2 wrong command line, 3 another rank failed first.",
        args, COUNT_OF(args) };
    struct sherd_world world = { 0 };
    int launcher = 0, code = args_parse(&command, argc, argv, &nothing);
    if (code < 0)
        code = rank_place(NAME, o.ranks, &world, &launcher);
    if (code >= 0)
        return code;
    out_log(world.rank, world.size);
    if (launcher)
        return launch_job(
            &(struct launch_desc){ .ranks = (int)o.ranks, .argv = argv, .own = 1, .grace = 10 });
    return run_rank(&o, &world);
}

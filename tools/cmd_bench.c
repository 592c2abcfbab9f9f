/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd bench: the collectives timed and checked, in the columns of nccl-tests.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/bench.h"
#include "tools/commands.h"
#include "tools/launch.h"
#include "tools/out.h"
#include "tools/rank.h"
#include "tools/rates.h"

#define NAME "bench"
#define MOST_BYTES 0x1p50

static const char *const kind_names[] = {
    [SHERD_ALL_GATHER] = "all_gather",
    [SHERD_REDUCE_SCATTER] = "reduce_scatter",
    [SHERD_ALL_REDUCE] = "all_reduce",
    [SHERD_BROADCAST] = "broadcast",
};
static const char *const type_names[] = { "float", "bfloat16", "half", "double", "int32", "int64", "uint8",
    NULL };
static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F16, SHERD_F64, SHERD_I32, SHERD_I64,
    SHERD_U8 };
static const char *const bind_words[] = { "auto", "none", NULL }; /* enum sherd_bind */
static const char *const op_names[] = { "sum", "max", NULL };

struct options {
    const char *what, *device, *first_text, *last_text, *step_text, *save;
    int64_t ranks, factor, iters, warmup, cycles, check, root;
    int64_t expose;        /* -1 = not said */
    double timeout, least; /* least: GB/s of a mean busbw, -1 = any */
    int type, op, json, bind;
    int from, to;            /* kinds */
    struct rates_link *link; /* where figures are kept for --save */
    uint64_t first, last, step;
};

/* What one collective came to. */
struct totals {
    double wrong, busbw;
    int n; /* figures in busbw */
};

/* The whole of a run. */
struct verdict {
    double wrong;
    const char *slow; /* a collective below the least busbw */
    double busbw;     /* its mean */
};

/* ---- options ---- */

/* As nccl-tests: K, M, G are powers of 1024, fractions may be given. */
static int parse_bytes(const char *name, const char *text, uint64_t *out)
{
    static const char units[] = "kmg";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end | 32) : NULL;
    if (unit) {
        value = ldexp(value, 10 * (int)(unit - units + 1));
        end++;
    }
    if (end == text || *end || text[0] < '0' || text[0] > '9' || !(value >= 1 && value <= MOST_BYTES))
        return args_mistake(NAME, "--%s: '%s' is not a size such as 8, 64K, 1.5M or 8G", name, text);
    *out = (uint64_t)value;
    return -1;
}

/* nccl-tests' variables: one is a bound, the others ask for what is not here. */
static int parse_variables(struct options *o)
{
    static const char *const others[] = { "NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_DEVICE" };
    const char *text = getenv("NCCL_TESTS_MIN_BW");
    char *end;
    o->least = -1;
    if (text && text[0]) {
        o->least = strtod(text, &end);
        if (end == text || *end || !(o->least >= 0))
            return args_mistake(NAME, "NCCL_TESTS_MIN_BW is '%s', a number of GB/s is wanted", text);
    }
    for (int i = 0; i < COUNT_OF(others); i++)
        if (getenv(others[i]) && getenv(others[i])[0])
            return args_mistake(NAME, "%s is set, and has no meaning here: unset it", others[i]);
    return -1;
}

static int parse_kind(struct options *o)
{
    const char *words[SHERD_COLLECTIVES + 1];
    o->from = 0;
    o->to = SHERD_COLLECTIVES;
    if (strcmp(o->what, "all") == 0)
        return -1;
    for (int k = 0; k < SHERD_COLLECTIVES; k++) {
        words[k] = kind_names[k];
        if (strcmp(o->what, kind_names[k]) != 0)
            continue;
        o->from = k;
        o->to = k + 1;
        return -1;
    }
    words[SHERD_COLLECTIVES] = "all";
    const char *near = text_nearest(o->what, words, SHERD_COLLECTIVES + 1);
    return args_mistake(NAME, "'%s' is none of all_gather, reduce_scatter, all_reduce, broadcast, all%s%s%s",
        o->what, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int parse_sizes(struct options *o)
{
    if (o->save && !o->first_text && !o->last_text && !o->step_text && !o->factor) {
        o->first_text = "64K";
        o->factor = 8;
    }
    int first_given = o->first_text != NULL;
    o->first_text = o->first_text ? o->first_text : "32M";
    o->last_text = o->last_text ? o->last_text : "32M";
    int code = parse_bytes("minbytes", o->first_text, &o->first);
    if (code < 0)
        code = parse_bytes("maxbytes", o->last_text, &o->last);
    if (code < 0)
        code = parse_bytes("stepbytes", o->step_text ? o->step_text : "1M", &o->step);
    if (code < 0 && o->factor && o->step_text)
        return args_mistake(NAME, "give --stepfactor or --stepbytes, not both");
    if (code < 0 && o->first > o->last && !first_given)
        return args_mistake(NAME,
            "--maxbytes %s is less than the first size, %s by default; give --minbytes (-b), too",
            o->last_text, o->first_text);
    if (code < 0 && o->first > o->last)
        return args_mistake(NAME, "--minbytes %s is more than --maxbytes %s", o->first_text, o->last_text);
    return code;
}

static int check_world(const struct options *o, int ranks)
{
    if (o->save && (o->from > 0 || o->to < SHERD_COLLECTIVES || !(o->factor || o->step_text)))
        return args_mistake(
            NAME, "--save needs all collectives at more than one size: sherd bench all --save FILE");
    int sums = o->from <= SHERD_ALL_REDUCE && o->to > SHERD_REDUCE_SCATTER && o->op == 0;
    if (o->op == SHERD_REDUCE_MAX && o->from <= SHERD_REDUCE_SCATTER && o->to > SHERD_REDUCE_SCATTER)
        return args_mistake(NAME, "reduce_scatter has sums only: leave out --op max, or measure all_reduce");
    if (o->root >= ranks)
        return args_mistake(
            NAME, "--root %lld: there are %d ranks, numbered from 0", (long long)o->root, ranks);
    if (o->check && sums && bench_top(types[o->type], ranks, 1) == 0)
        return args_mistake(NAME, "%s holds no exact sums of %d ranks: use --datatype float, or --check 0",
            type_names[o->type], ranks);
    return -1;
}

static uint64_t next(const struct options *o, uint64_t bytes)
{
    return o->factor ? bytes * (uint64_t)o->factor : bytes + o->step;
}

/* ---- what is shown ---- */

/* `width` characters, as many decimals as fit, up to two. */
static const char *number(double value, int width, char buf[32])
{
    for (int decimals = 2; decimals >= 0; decimals--)
        if (snprintf(buf, 32, "%*.*f", width, decimals, value) <= width)
            return buf;
    snprintf(buf, 32, "%*.*e", width, width >= 7 ? 1 : 0, value);
    return buf;
}

static void print_head(const struct options *o, int kind, int ranks)
{
    char host[256] = "?", name[32];
    gethostname(host, sizeof(host) - 1);
    printf("# sherd %s, collectives in the columns of nccl-tests\n", sherd_version());
    printf("# Collective test starting: %s\n", kind_names[kind]);
    printf("# nRanks %d minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: %lld iters: %lld "
           "validation: %lld exposed: %lld\n",
        ranks, (unsigned long long)o->first, (unsigned long long)o->last,
        (unsigned long long)(o->factor ? (uint64_t)o->factor : o->step), o->factor ? "factor" : "bytes",
        (long long)o->warmup, (long long)o->iters, (long long)o->check, (long long)o->expose);
    printf("#\n# Using devices\n");
    for (int r = 0; r < ranks; r++)
        printf("#  Rank %2d on %s device %s\n", r, host, rank_device(o->device, r, name));
    printf("#\n#%74s%31s\n", "out-of-place", "in-place");
    printf("#%11s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++)
        printf("  %7s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
    printf("\n#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
        "(GB/s)");
    printf("  %6s  %7s  %6s  %6s\n", "", "(us)", "(GB/s)", "(GB/s)");
}

static double algbw(const struct bench_shape *s, const struct bench_figure *f)
{
    return f->seconds > 0 ? (double)s->a / f->seconds / 1e9 : 0;
}

static double busbw(const struct bench_shape *s, const struct bench_figure *f, int ranks)
{
    double share = (double)(ranks - 1) / ranks;
    double factor = s->kind == SHERD_BROADCAST ? 1 : s->kind == SHERD_ALL_REDUCE ? 2 * share : share;
    return factor * algbw(s, f);
}

static const char *redop(const struct options *o, int kind)
{
    return kind == SHERD_REDUCE_SCATTER || kind == SHERD_ALL_REDUCE ? op_names[o->op] : "none";
}

static int root_of(const struct options *o, int kind)
{
    return kind == SHERD_BROADCAST ? (int)o->root : -1;
}

static void print_row(
    const struct options *o, const struct bench_shape *s, const struct bench_figure f[2], int ranks)
{
    char t[32], a[32], b[32];
    printf("%12lli  %12lli  %8s  %6s  %6d", (long long)s->a, (long long)s->count, type_names[o->type],
        redop(o, s->kind), root_of(o, s->kind));
    for (int i = 0; i < 2; i++) {
        printf("  %7s  %6s  %6s", number(f[i].seconds * 1e6, 7, t), number(algbw(s, &f[i]), 6, a),
            number(busbw(s, &f[i], ranks), 6, b));
        if (o->check)
            printf("  %6g", f[i].wrong);
        else
            printf("  %6s", "N/A");
    }
    printf("\n");
    fflush(stdout);
}

static double mean(const struct totals *t)
{
    return t->n ? t->busbw / t->n : 0;
}

/* As nccl-tests: a tenth below the bound is let pass. */
static int is_slow(const struct options *o, const struct totals *t)
{
    return mean(t) < 0.9 * o->least;
}

static void print_foot(const struct options *o, const struct totals *t, int kind)
{
    const char *word = o->least < 0 ? "" : is_slow(o, t) ? " FAILED" : " OK";
    printf("# Out of bounds values : %g %s\n", t->wrong, t->wrong > 0 ? "FAILED" : "OK");
    printf("# Avg bus bandwidth    : %g%s\n#\n", mean(t), word);
    printf("# Collective test concluded: %s\n", kind_names[kind]);
}

static json_t *figure_json(
    const struct options *o, const struct bench_shape *s, const struct bench_figure *f, int ranks)
{
    return json_pack("{s:f, s:f, s:f, s:o}", "time", f->seconds * 1e6, "alg_bw", algbw(s, f), "bus_bw",
        busbw(s, f, ranks), "nwrong", o->check ? json_integer((json_int_t)f->wrong) : json_null());
}

static json_t *row_json(
    const struct options *o, const struct bench_shape *s, const struct bench_figure f[2], int ranks)
{
    return json_pack("{s:I, s:I, s:s, s:s, s:i, s:o, s:o}", "size", (json_int_t)s->a, "count",
        (json_int_t)s->count, "type", type_names[o->type], "redop", redop(o, s->kind), "root",
        root_of(o, s->kind), "out_of_place", figure_json(o, s, &f[0], ranks), "in_place",
        figure_json(o, s, &f[1], ranks));
}

static json_t *collective_json(const struct options *o, const struct totals *t, int kind, json_t *rows)
{
    json_t *okay = o->least < 0 ? NULL : json_boolean(!is_slow(o, t)); /* left out where there is no bound */
    return json_pack("{s:s, s:o, s:{s:I, s:b}, s:{s:f, s:o*}}", "name", kind_names[kind], "results", rows,
        "out_of_bounds", "count", (json_int_t)t->wrong, "okay", t->wrong == 0, "average_bus_bandwidth",
        "bandwidth", mean(t), "okay", okay);
}

static json_t *whole_json(const struct options *o, int ranks, json_t *all)
{
    return json_pack("{s:s, s:{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:b}, s:o}", "version",
        sherd_version(), "config", "ranks", ranks, "device", o->device, "minbytes", (json_int_t)o->first,
        "maxbytes", (json_int_t)o->last, o->factor ? "stepfactor" : "stepbytes",
        (json_int_t)(o->factor ? (uint64_t)o->factor : o->step), "iters", (json_int_t)o->iters,
        "warmup_iters", (json_int_t)o->warmup, "check", (int)o->check, "exposed", (int)o->expose,
        "collectives", all);
}

/* ---- a rank ---- */

/* One collective once over all sizes; rows are collected where `rows` is not NULL. */
static int run_sizes(const struct options *o, struct bench *b, int kind, struct totals *totals, json_t *rows)
{
    int shows = b->rank == 0 && !rows;
    for (uint64_t bytes = o->first; bytes <= o->last; bytes = next(o, bytes)) {
        struct bench_shape s =
            bench_shape((enum sherd_collective)kind, bytes, b->desc.type, b->ranks, b->desc.expose);
        struct bench_figure f[2];
        for (int i = 0; i < 2; i++) {
            int st = bench_run(b, &s, i, &f[i]);
            if (st != SHERD_OK)
                return st;
            totals->wrong += f[i].wrong;
            totals->busbw += busbw(&s, &f[i], b->ranks);
            totals->n++;
        }
        if (o->link && kind < SHERD_BROADCAST)
            rates_link_add(o->link, s.kind, busbw(&s, &f[1], b->ranks) * 1e9 * f[1].seconds, f[1].seconds);
        if (shows)
            print_row(o, &s, f, b->ranks);
        if (rows)
            json_array_append_new(rows, row_json(o, &s, f, b->ranks));
    }
    return SHERD_OK;
}

static int run_kinds(const struct options *o, struct bench *b, json_t *all, struct verdict *verdict)
{
    for (int kind = o->from; kind < o->to; kind++) {
        struct totals totals = { 0 };
        json_t *rows = all ? json_array() : NULL;
        int shows = b->rank == 0 && !all;
        if (shows)
            print_head(o, kind, b->ranks);
        int st = SHERD_OK;
        for (int64_t i = 0; i < o->cycles && st == SHERD_OK; i++)
            st = run_sizes(o, b, kind, &totals, rows);
        if (st != SHERD_OK) {
            json_decref(rows);
            return st;
        }
        if (shows)
            print_foot(o, &totals, kind);
        if (all)
            json_array_append_new(all, collective_json(o, &totals, kind, rows));
        verdict->wrong += totals.wrong;
        if (is_slow(o, &totals)) {
            verdict->slow = kind_names[kind];
            verdict->busbw = mean(&totals);
        }
    }
    return SHERD_OK;
}

static int measure(const struct options *o, struct bench *b, const struct bench_desc *desc)
{
    struct bench_memory need[2] = { 0 };
    struct verdict verdict = { 0 };
    int rank = sherd_comm_rank(desc->comm), ranks = sherd_comm_size(desc->comm);
    for (int kind = o->from; kind < o->to; kind++)
        for (uint64_t bytes = o->first; bytes <= o->last; bytes = next(o, bytes)) {
            struct bench_shape s =
                bench_shape((enum sherd_collective)kind, bytes, desc->type, ranks, desc->expose);
            bench_need(need, &s);
        }
    int st = bench_open(b, desc, need);
    json_t *all = o->json && rank == 0 ? json_array() : NULL;
    if (st == SHERD_OK)
        st = run_kinds(o, b, all, &verdict);
    if (st != SHERD_OK)
        json_decref(all);
    else if (all && out_json(whole_json(o, ranks, all)) != EXIT_OK)
        st = sherd_fail(SHERD_EIO, "the JSON result could not be written");
    /* Rank 0 tells for all: a rank that failed before it would end it in the middle of its output. */
    if (st == SHERD_OK && verdict.wrong > 0 && rank == 0)
        st = sherd_fail(SHERD_ECOMM, "%.0f wrong values were found, see #wrong", verdict.wrong);
    else if (st == SHERD_OK && verdict.slow && rank == 0)
        st = sherd_fail(SHERD_ECOMM, "%s: the mean busbw, %.3g GB/s, is below 0.9 of NCCL_TESTS_MIN_BW, %g",
            verdict.slow, verdict.busbw, o->least);
    return st;
}

/* Every rank measures, since all are busy in training too; the first writes. */
static int save_rates(const struct options *o, const struct bench_desc *desc, const struct sherd_world *world)
{
    struct sherd_machine machine = { 0 };
    int st = rates_measure(&machine, desc->device);
    struct sherd_device_counters counters;
    sherd_device_read(desc->device, &counters);
    machine.library_bytes = counters.library_bytes;
    if (st == SHERD_OK)
        st = sherd_comm_barrier(desc->comm);
    return st == SHERD_OK && world->rank == 0 ? rates_save(o->save, &machine, o->link, world) : st;
}

static int run_rank(struct options *o, const struct sherd_world *world)
{
    struct rates_link link = { 0 };
    char name[32];
    struct bench b = { 0 };
    struct bench_desc desc = { .local_size = world->local_size,
        .type = types[o->type],
        .reduce = (enum sherd_reduce)o->op,
        .iters = o->iters,
        .warmup = o->warmup,
        .check = (int)o->check,
        .expose = (int)o->expose,
        .root = (int)o->root };
    const char *device_name = rank_device(o->device, world->local_rank, name);
    o->link = o->save ? &link : NULL;
    if (o->bind == SHERD_BIND_AUTO)
        rank_bind(device_name, world, 1);
    int st =
        sherd_device_open(&desc.device, &(struct sherd_device_desc){ .name = device_name, .threads = 1 });
    if (st == SHERD_OK)
        st = sherd_comm_open(
            &desc.comm, desc.device, &(struct sherd_comm_desc){ .world = *world, .timeout = o->timeout });
    if (st == SHERD_OK)
        st = measure(o, &b, &desc);
    if (st == SHERD_OK && o->save)
        st = save_rates(o, &desc, world);
    int code = st == SHERD_OK ? EXIT_OK : rank_failed(st, world);
    if (st != SHERD_OK && st != SHERD_EPEER && desc.comm)
        sherd_comm_abort(desc.comm, sherd_error());
    bench_close(&b);
    sherd_comm_close(desc.comm);
    sherd_device_close(desc.device);
    return code;
}

static int run_or_launch(struct options *o, char *const *argv)
{
    struct sherd_world world = { 0 };
    int launcher = 0, code = parse_kind(o);
    if (o->expose < 0)
        o->expose = o->save != NULL;
    if (code < 0)
        code = parse_variables(o);
    if (code < 0)
        code = parse_sizes(o);
    if (code < 0)
        code = rank_place(NAME, o->ranks, &world, &launcher);
    if (code < 0)
        code = check_world(o, launcher ? (int)o->ranks : world.size);
    if (code >= 0)
        return code;
    out_log(world.rank, world.size);
    if (launcher)
        return launch_job(
            &(struct launch_desc){ .ranks = (int)o->ranks, .argv = argv, .own = 1, .grace = 10 });
    return run_rank(o, &world);
}

static const char text[] =
    "Prints the columns of nccl-tests: size of the larger of input and output, count of elements of the\n"
    "call, and out of place and in place: time of a call (mean over the ranks, host clock around all\n"
    "iterations), algbw = size/time, busbw = algbw x (n-1)/n for all_gather and reduce_scatter, x 2(n-1)/n\n"
    "for all_reduce, x 1 for broadcast, in 1e9 B/s, and #wrong. Then the mean of all busbw. One rank's part\n"
    "of all_gather and reduce_scatter is rounded down to 16 bytes, so that small sizes may be 0.\n\n"
    "Checks compare every element of every size on every rank, after a call of its own on whole numbers\n"
    "whose sums are exact in any order; the numbers repeat after 1048573 elements.\n\n"
    "Each call of a measurement works in other memory than the call before, within what the largest size\n"
    "takes: small sizes are not measured on what caches hold, unless -e is small too.\n\n"
    "SIZE is a number of bytes, with K, M or G a multiple of 1024, 1024^2 or 1024^3. Memory for the largest\n"
    "size is taken once. With --local_register 1 the communicators prepare for it, as in training (-R 2 of\n"
    "nccl-tests); sizes whose part of a rank is not a multiple of 256 bytes use other memory, which is never\n"
    "prepared for. The default is ordinary memory, as in nccl-tests; --save measures what training uses.\n\n"
    "Under torchrun, mpirun or srun each process is one rank of their world; otherwise see --ranks.\n\n"
    "NCCL_TESTS_MIN_BW is a number of GB/s: a collective whose mean busbw is below 0.9 of it has failed.\n\n"
    "Exit status: 0 done, 1 wrong values, too slow or failed, 2 wrong command line, 3 another rank failed first,\n"
    "128 + n ended by signal n.";

int cmd_bench(int argc, char **argv)
{
    struct options o = { .device = "cpu", .iters = 20, .warmup = 1, .cycles = 1, .check = 1, .expose = -1 };
    const struct arg args[] = {
        { "ranks", ARG_INT, &o.ranks, "N", "start N ranks on this host (default 1)", .min = 1, .max = 4096 },
        { "device", ARG_TEXT, &o.device, "NAME", "cpu, or cuda for one GPU a rank (default cpu)" },
        { "minbytes", ARG_TEXT, &o.first_text, "SIZE", "the first size (default 32M)", .letter = 'b' },
        { "maxbytes", ARG_TEXT, &o.last_text, "SIZE", "the last size (default 32M)", .letter = 'e' },
        { "stepfactor", ARG_INT, &o.factor, "N", "each size is N times the one before", .min = 2,
            .max = 1 << 20, .letter = 'f' },
        { "stepbytes", ARG_TEXT, &o.step_text, "SIZE", "or SIZE more (default 1M)", .letter = 'i' },
        { "iters", ARG_INT, &o.iters, "N", "calls in a measurement (default 20)", .min = 1, .max = 1e9,
            .letter = 'n' },
        { "warmup_iters", ARG_INT, &o.warmup, "N", "calls before it, at every size (default 1)", .min = 0,
            .max = 1e9, .letter = 'w' },
        { "run_cycles", ARG_INT, &o.cycles, "N", "measure all sizes so many times over (default 1)", .min = 1,
            .max = 1e9, .letter = 'N' },
        { "check", ARG_INT, &o.check, "0|1", "compare the results (default 1)", .min = 0, .max = 1,
            .letter = 'c' },
        { "datatype", ARG_CHOICE, &o.type, "float|bfloat16|half|double|int32|int64|uint8",
            "type of the elements (default float)", .words = type_names, .letter = 'd' },
        { "op", ARG_CHOICE, &o.op, "sum|max", "of all_reduce (default sum)", .words = op_names,
            .letter = 'o' },
        { "root", ARG_INT, &o.root, "RANK", "of broadcast (default 0)", .min = 0, .max = 4095,
            .letter = 'r' },
        { "local_register", ARG_INT, &o.expose, "0|1",
            "memory that communicators prepare for (default 0; 1 with --save)", .min = 0, .max = 1,
            .letter = 'R' },
        { "bind", ARG_CHOICE, &o.bind, "auto|none",
            "GPU: keep each rank to its share of the cores near its GPU, if\nnobody has bound it, or not (default auto)",
            .words = bind_words },
        { "timeout", ARG_REAL, &o.timeout, "SECONDS", "without progress, to fail (default 600)", .min = 0,
            .max = 1e8, .letter = 'T' },
        { "save", ARG_TEXT, &o.save, "FILE",
            "also measure matrix products, attention and memory, and write a\ndevice file for 'sherd plan --device'; sizes are 64K to 32M by 8" },
        { "json", ARG_FLAG, &o.json, NULL, "print one JSON value instead, at the end" },
    };
    const struct command command = { NAME, "COLLECTIVE", 1, 1,
        "Measures and checks all_gather, reduce_scatter, all_reduce, broadcast, or all of them.", text, args,
        COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &o.what);
    return code >= 0 ? code : run_or_launch(&o, argv);
}

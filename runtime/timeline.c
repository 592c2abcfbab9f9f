/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What became of a profile (runtime/profile.h): one timeline for all ranks, in the trace event format that
 * Perfetto and chrome://tracing open, and tables in the log of rank 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "runtime/engine.h"

#define TOP_OPS 24
#define TOP_RANKS 16

static const char *const queue_names[] = { "compute", "gather", "reduce", "update" };

/* ---- the timeline ---- */

static void put_text(struct text *t, const char *s)
{
    text_put(t, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            text_put(t, "\\", 1);
        if ((unsigned char)*s < 0x20)
            text_add(t, "\\u%04x", (unsigned)*s);
        else
            text_put(t, s, 1);
    }
    text_put(t, "\"", 1);
}

static void put_name(struct text *t, const struct profile *p, const struct profile_span *s)
{
    struct text name = { 0 };
    if (s->instr)
        program_instr_name(&name, s->instr, &p->engine->plan.program_desc);
    else
        text_add(&name, "%s", s->name);
    put_text(t, name.data ? name.data : "?");
    t->failed |= name.failed;
    text_finish(&name);
}

static void put_thread(struct text *t, int rank, int queue, const char *name)
{
    text_add(t, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n",
        rank, queue, name);
    text_add(t,
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}},\n",
        rank, queue, queue);
}

/* An event that lasts from `from` to `to` ms; time 0 is at `zero` microseconds. Its args follow. */
static void put_place(struct text *t, int rank, int thread, double zero, double from, double to)
{
    text_add(t, "\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", rank, thread,
        zero + 1e3 * from, 1e3 * (to - from));
}

static void put_span(
    struct text *t, const struct profile *p, int rank, const struct profile_span *s, double zero)
{
    static const char *const kinds[] = { [PROBE_PART] = "instruction",
        [PROBE_WAIT] = "wait",
        [PROBE_COLLECTIVE] = "collective",
        [PROBE_OP] = "operation" };
    double seconds = 1e-3 * (s->to - s->from);
    text_add(t, "{\"name\":");
    put_name(t, p, s);
    text_add(t, ",\"cat\":\"%s\",", kinds[s->kind]);
    put_place(t, rank, s->queue + 1, zero, s->from, s->to);
    text_add(t, "\"step\":%lld", (long long)p->steps[s->step].step);
    if (s->instr) {
        struct text place = { 0 };
        program_place(&place, &p->engine->plan.program, &p->engine->plan.program_desc, s->list, s->at);
        text_add(t, ",\"place\":");
        put_text(t, place.data ? place.data : "?");
        t->failed |= place.failed;
        text_finish(&place);
    }
    if (s->shape[0])
        text_add(t, ",\"shape\":\"%s\"", s->shape);
    if (s->bytes > 0 && seconds > 0)
        text_add(t, ",\"bytes\":%.0f,\"GB/s\":%.1f", s->bytes, 1e-9 * s->bytes / seconds);
    if (s->flops > 0 && seconds > 0)
        text_add(t, ",\"TFLOP/s\":%.2f", 1e-12 * s->flops / seconds);
    text_add(t, "}},\n");
}

/* This rank's events; ends in a comma. `base`: host seconds at time 0. */
static int make_events(char **out, const struct profile *p, double base)
{
    struct text t = { 0 };
    int rank = sherd_comm_rank(p->engine->comm);
    double zero = 1e6 * (p->clock - base);
    text_add(&t, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}},\n",
        rank, rank);
    put_thread(&t, rank, 0, "steps");
    for (int q = 0; q < PROFILE_QUEUES; q++)
        put_thread(&t, rank, q + 1, queue_names[q]);
    for (int i = 0; i < p->n_steps; i++) {
        const struct profile_step *s = &p->steps[i];
        text_add(&t, "{\"name\":\"step %lld\",\"cat\":\"step\",", (long long)s->step);
        put_place(&t, rank, 0, zero, s->from, s->to);
        text_add(&t, "\"step\":%lld,\"busy_ms\":%.4f,\"exposed_ms\":%.4f,\"idle_ms\":%.4f}},\n",
            (long long)s->step, s->busy, s->exposed, s->idle);
    }
    for (int i = 0; i < p->n_spans; i++)
        put_span(&t, p, rank, &p->spans[i], zero);
    return text_take(&t, out);
}

/* The ranks of one host share a clock; others begin together, as far as anyone knows. */
static int clock_base(const struct profile *p, double *base)
{
    struct sherd_comm *comm = p->engine->comm;
    double first = *base = p->clock;
    SHERD_TRY(comm_host_broadcast(comm, &first, sizeof(first), 0));
    if (comm->world.local_size == comm->world.size)
        *base = first;
    return SHERD_OK;
}

/* Rank 0 appends the events of rank r, which come from there. */
static int collect(struct text *all, const struct profile *p, int r, const char *mine)
{
    struct sherd_comm *comm = p->engine->comm;
    int rank = sherd_comm_rank(comm);
    uint64_t bytes = strlen(mine) + 1;
    SHERD_TRY(comm_host_broadcast(comm, &bytes, sizeof(bytes), r));
    char *events = mem_zalloc(1, bytes);
    int st = comm_agree(comm, events ? SHERD_OK : SHERD_ENOMEM);
    if (st == SHERD_OK) {
        if (r == rank)
            memcpy(events, mine, bytes);
        st = comm_host_broadcast(comm, events, bytes, r);
    }
    if (st == SHERD_OK && rank == 0)
        text_put(all, events, bytes - 1);
    mem_free(events);
    return st;
}

static int write_file(const struct profile *p, struct text *all)
{
    char *text;
    while (all->len > 0 && (all->data[all->len - 1] == '\n' || all->data[all->len - 1] == ','))
        all->len--;
    text_add(all, "\n]}\n");
    SHERD_TRY(text_take(all, &text));
    int st = file_write_atomic(p->path, text, strlen(text));
    mem_free(text);
    return st;
}

static int write_timeline(const struct profile *p)
{
    struct sherd_comm *comm = p->engine->comm;
    struct text all = { 0 };
    char *mine = NULL;
    double base;
    SHERD_TRY(clock_base(p, &base));
    int st = comm_agree(comm, make_events(&mine, p, base));
    text_add(&all, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int r = 0; r < sherd_comm_size(comm) && st == SHERD_OK; r++)
        st = collect(&all, p, r, mine);
    mem_free(mine);
    if (st == SHERD_OK && sherd_comm_rank(comm) == 0)
        st = write_file(p, &all);
    text_finish(&all);
    return comm_agree(comm, st);
}

/* ---- tables ---- */

/* Spans of one label, summed over the steps. */
struct row {
    char label[112];
    int calls;
    double busy, wait, beside; /* ms: on the compute queue; waiting there; on the other queues */
    double flops, bytes;
};

struct table {
    struct row *rows;
    int n, cap;
};

static int find_row(struct table *t, const char *label, struct row **out)
{
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->rows[i].label, label) == 0) {
            *out = &t->rows[i];
            return SHERD_OK;
        }
    }
    SHERD_TRY(mem_grow(&t->rows, &t->cap, t->n + 1, sizeof(*t->rows)));
    *out = &t->rows[t->n++];
    **out = (struct row){ 0 };
    snprintf((*out)->label, sizeof((*out)->label), "%s", label);
    return SHERD_OK;
}

/* "forward block", "update", "counts". Scalars are summed outside of any part of the reduce queue. */
static void part_label(char out[112], const struct profile *p, const struct profile_span *s)
{
    const char *kind = "";
    if (s->instr && program_is_layer(s->instr->op))
        kind = p->engine->plan.spec->layers[s->instr->index].ops->kind;
    if (s->kind != PROBE_PART) {
        snprintf(out, 112, "sums of scalars");
        return;
    }
    snprintf(out, 112, "%s%s%s", s->name, kind[0] ? " " : "", kind);
}

/* A wait or a collective counts to the part it lies in. */
static int count_span(struct table *t, const struct profile *p, const struct profile_span *s)
{
    const struct profile_span *part = s;
    char label[112];
    struct row *row;
    double ms = s->to - s->from;
    int compute = s->queue == PROFILE_COMPUTE;
    while (part->kind != PROBE_PART && part->parent >= 0)
        part = &p->spans[part->parent];
    if (part->kind == PROBE_WAIT)
        return SHERD_OK;
    part_label(label, p, part);
    SHERD_TRY(find_row(t, label, &row));
    if (s == part) {
        row->calls++;
        row->busy += compute ? ms : 0;
        row->beside += compute ? 0 : ms;
    } else if (compute && s->kind != PROBE_OP) {
        row->busy -= ms;
        row->wait += ms;
    } else if (s->kind == PROBE_WAIT) {
        row->beside -= ms;
    }
    return SHERD_OK;
}

/* "matmul 16384x5632x2048 nt bf16>bf16", "all-gather 44.1 MB". */
static int count_op(struct table *t, const struct profile_span *s)
{
    char label[112], size[32];
    struct row *row;
    if (s->kind == PROBE_OP)
        snprintf(label, sizeof(label), "%s %s", s->name, s->shape);
    else
        snprintf(label, sizeof(label), "%s %s", s->name, text_human_bytes(s->bytes, size));
    SHERD_TRY(find_row(t, label, &row));
    row->calls++;
    row->busy += s->to - s->from;
    row->flops += s->flops;
    row->bytes += s->bytes;
    return SHERD_OK;
}

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double tx = x->busy + x->wait + x->beside, ty = y->busy + y->wait + y->beside;
    return tx < ty ? 1 : tx > ty ? -1 : strcmp(x->label, y->label);
}

static void say_parts(const struct table *t, double steps, double whole)
{
    log_info("%-24s %8s %12s %7s %12s %12s", "a step: instruction", "times", "compute ms", "share",
        "waiting ms", "beside ms");
    for (int i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        log_info("%-24s %8g %12.3f %6.1f%% %12.3f %12.3f", r->label, r->calls / steps, r->busy / steps,
            100 * r->busy / steps / whole, r->wait / steps, r->beside / steps);
    }
}

static void say_ops(const struct table *t, double steps, double whole)
{
    log_info("%-52s %6s %10s %7s %10s %9s %9s", "a step: operation or collective", "times", "ms", "share",
        "us each", "TFLOP/s", "GB/s");
    for (int i = 0; i < MIN(t->n, TOP_OPS); i++) {
        const struct row *r = &t->rows[i];
        double s = 1e-3 * r->busy;
        log_info("%-52s %6g %10.3f %6.1f%% %10.1f %9.2f %9.1f", r->label, r->calls / steps, r->busy / steps,
            100 * r->busy / steps / whole, 1e3 * r->busy / r->calls, s > 0 ? 1e-12 * r->flops / s : 0,
            s > 0 ? 1e-9 * r->bytes / s : 0);
    }
    if (t->n > TOP_OPS)
        log_info("and %d more", t->n - TOP_OPS);
}

/* Means over the steps that were timed, from 0. */
static struct profile_step mean(const struct profile *p)
{
    struct profile_step m = { 0 };
    for (int i = 0; i < p->n_steps; i++) {
        m.to += (p->steps[i].to - p->steps[i].from) / p->n_steps;
        m.busy += p->steps[i].busy / p->n_steps;
        m.exposed += p->steps[i].exposed / p->n_steps;
        m.idle += p->steps[i].idle / p->n_steps;
    }
    return m;
}

static void say_ranks(const struct profile *p, const struct profile_step *all)
{
    int world = sherd_comm_size(p->engine->comm);
    log_info("%-6s %10s %12s %22s %14s", "rank", "step ms", "compute ms", "exposed communication", "idle ms");
    for (int r = 0; r < MIN(world, TOP_RANKS); r++)
        log_info("%-6d %10.3f %12.3f %12.3f (%5.2f %%) %14.3f", r, all[r].to, all[r].busy, all[r].exposed,
            100 * all[r].exposed / all[r].to, all[r].idle);
    if (world > TOP_RANKS)
        log_info("and %d more ranks, in the file", world - TOP_RANKS);
}

static int say_tables(const struct profile *p, const struct profile_step *all)
{
    struct table parts = { 0 }, ops = { 0 };
    int st = SHERD_OK;
    for (int i = 0; i < p->n_spans && st == SHERD_OK; i++) {
        const struct profile_span *s = &p->spans[i];
        st = count_span(&parts, p, s);
        if (st == SHERD_OK && (s->kind == PROBE_OP || s->kind == PROBE_COLLECTIVE))
            st = count_op(&ops, s);
    }
    if (st == SHERD_OK) {
        if (parts.n > 1)
            qsort(parts.rows, (size_t)parts.n, sizeof(*parts.rows), by_time);
        if (ops.n > 1)
            qsort(ops.rows, (size_t)ops.n, sizeof(*ops.rows), by_time);
        log_info(
            "profile of steps %lld to %lld, rank 0; the timeline of all ranks is in %s (open it in Perfetto)",
            (long long)p->steps[0].step, (long long)p->steps[p->n_steps - 1].step, p->path);
        say_ranks(p, all);
        say_parts(&parts, p->n_steps, all[0].to);
        if (ops.n > 0)
            say_ops(&ops, p->n_steps, all[0].to);
    }
    mem_free(parts.rows);
    mem_free(ops.rows);
    return st;
}

int profile_write(struct profile *p)
{
    struct sherd_comm *comm = p->engine->comm;
    int rank = sherd_comm_rank(comm);
    if (p->n_steps == 0) {
        if (rank == 0)
            log_warn(
                "nothing was profiled: the run ended before profile.skip steps were over; lower profile.skip");
        return SHERD_OK;
    }
    SHERD_TRY(comm_agree(comm, profile_read(p)));
    SHERD_TRY(write_timeline(p));
    struct profile_step mine = mean(p);
    struct profile_step *all = mem_zalloc((size_t)sherd_comm_size(comm), sizeof(*all));
    int st = comm_agree(comm, all ? SHERD_OK : SHERD_ENOMEM);
    if (st == SHERD_OK)
        st = comm_host_gather(comm, all, &mine, sizeof(mine));
    if (st == SHERD_OK && rank == 0)
        st = say_tables(p, all);
    mem_free(all);
    return comm_agree(comm, st);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Recording spans: see runtime/profile.h. Every span has two events on its queue, read when all is over.
 */
#include "runtime/profile.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "runtime/engine.h"

static int queue_of(const struct profile *p, const struct sherd_queue *queue)
{
    const struct sherd_engine *e = p->engine;
    return queue == e->compute        ? PROFILE_COMPUTE
           : queue == e->gather_queue ? PROFILE_GATHER
           : queue == e->reduce_queue ? PROFILE_REDUCE
           : queue == e->update_queue ? PROFILE_UPDATE
                                      : -1;
}

static int record(struct profile *p, struct sherd_queue *queue, int *event)
{
    SHERD_TRY(mem_grow(&p->events, &p->events_cap, p->n_events + 1, sizeof(struct sherd_event *)));
    SHERD_TRY(sherd_event_create(&p->events[p->n_events], p->engine->dev));
    *event = p->n_events++;
    return device_stamp(p->events[*event], queue);
}

static int passes(const struct profile *p, enum probe_kind kind)
{
    return p->next && (kind == PROBE_WAIT || kind == PROBE_COLLECTIVE);
}

static int begin(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *what)
{
    struct profile *p = (struct profile *)probe;
    int q = queue_of(p, queue);
    if (q < 0)
        return SHERD_OK;
    SHERD_TRY(mem_grow(&p->spans, &p->spans_cap, p->n_spans + 1, sizeof(*p->spans)));
    struct profile_span *s = &p->spans[p->n_spans];
    *s = (struct profile_span){ .kind = what->kind,
        .queue = (enum profile_queue)q,
        .step = p->n_steps - 1,
        .parent = p->open[q],
        .name = what->name,
        .bytes = (double)what->bytes };
    if (what->kind == PROBE_OP) {
        s->flops = op_flops(what->op, what->args);
        s->bytes = op_bytes(what->op, what->args);
        op_shape(what->op, what->args, s->shape);
    }
    p->open[q] = p->n_spans++;
    SHERD_TRY(record(p, queue, &s->begin));
    return passes(p, what->kind) ? p->next->begin(p->next, queue, what) : SHERD_OK;
}

static int end(struct device_probe *probe, struct sherd_queue *queue)
{
    struct profile *p = (struct profile *)probe;
    int q = queue_of(p, queue);
    if (q < 0)
        return SHERD_OK;
    struct profile_span *s = &p->spans[p->open[q]];
    p->open[q] = s->parent;
    if (passes(p, s->kind))
        SHERD_TRY(p->next->end(p->next, queue));
    return record(p, queue, &s->end);
}

int profile_create(struct profile **out, struct sherd_engine *e, const struct sherd_config *c)
{
    struct profile *p = mem_zalloc(1, sizeof(*p));
    if (!p)
        return SHERD_ENOMEM;
    p->probe = (struct device_probe){ c->profile.detail == SHERD_PROFILE_OPS, begin, end };
    p->engine = e;
    p->skip = c->profile.skip;
    p->want = c->profile.steps;
    p->path = strcmp(c->profile.file, "auto") == 0 ? mem_printf("%s/profile.json", c->run.dir)
                                                   : mem_strdup(c->profile.file);
    if (!p->path) {
        profile_destroy(p);
        return SHERD_ENOMEM;
    }
    *out = p;
    return SHERD_OK;
}

void profile_destroy(struct profile *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_events; i++)
        sherd_event_destroy(p->events[i]);
    mem_free(p->events);
    mem_free(p->spans);
    mem_free(p->steps);
    mem_free(p->path);
    mem_free(p);
}

int profile_full(const struct profile *p)
{
    return p && p->n_steps == p->want;
}

int profile_due(struct profile *p)
{
    return p && !profile_full(p) && p->skip-- <= 0;
}

int profile_step_begin(struct profile *p, int64_t step)
{
    int begins;
    SHERD_TRY(mem_grow(&p->steps, &p->steps_cap, p->n_steps + 1, sizeof(*p->steps)));
    SHERD_TRY(record(p, p->engine->compute, &begins));
    for (int q = 0; q < PROFILE_QUEUES; q++)
        p->open[q] = -1;
    p->steps[p->n_steps++] = (struct profile_step){ .step = step, .begin = begins };
    p->first_span = p->n_spans;
    p->active = 1;
    p->next = p->engine->dev->probe;
    p->engine->dev->probe = &p->probe;
    profile_launched(p);
    return SHERD_OK;
}

void profile_launched(struct profile *p)
{
    if (p && p->n_steps == 1)
        p->clock = clock_seconds();
}

void profile_drop(struct profile *p)
{
    p->n_spans = p->first_span;
    p->n_steps--;
    p->active = 0;
    p->engine->dev->probe = p->next;
}

int profile_step_end(struct profile *p)
{
    if (!p || !p->active)
        return SHERD_OK;
    p->active = 0;
    p->engine->dev->probe = p->next;
    return record(p, p->engine->compute, &p->steps[p->n_steps - 1].end);
}

static int read_times(const struct profile *p, int begin, int end, double *from, double *to)
{
    SHERD_TRY(sherd_event_elapsed(p->events[p->steps[0].begin], p->events[begin], from));
    return sherd_event_elapsed(p->events[p->steps[0].begin], p->events[end], to);
}

/* Waits of the compute queue and collectives of its own are exposed; what is left of its parts is work. */
static void add_span(struct profile_step *step, const struct profile_span *s)
{
    double ms = s->to - s->from;
    if (s->queue != PROFILE_COMPUTE || s->kind == PROBE_OP)
        return;
    if (s->kind == PROBE_PART) {
        step->busy += ms;
        return;
    }
    step->exposed += ms;
    step->busy -= s->parent >= 0 ? ms : 0;
}

int profile_read(struct profile *p)
{
    SHERD_TRY(engine_settle(p->engine));
    for (int i = 0; i < p->n_steps; i++)
        SHERD_TRY(read_times(p, p->steps[i].begin, p->steps[i].end, &p->steps[i].from, &p->steps[i].to));
    for (int i = 0; i < p->n_spans; i++) {
        struct profile_span *s = &p->spans[i];
        SHERD_TRY(read_times(p, s->begin, s->end, &s->from, &s->to));
        add_span(&p->steps[s->step], s);
    }
    for (int i = 0; i < p->n_steps; i++) {
        struct profile_step *s = &p->steps[i];
        s->idle = s->to - s->from - s->busy - s->exposed;
    }
    return SHERD_OK;
}

/* ---- parts of a step ---- */

static struct sherd_queue *queue_for(const struct profile *p, enum program_op op)
{
    const struct sherd_engine *e = p->engine;
    return op == PROGRAM_GATHER || op == PROGRAM_PUBLISH ? e->gather_queue
           : op == PROGRAM_REDUCE                        ? e->reduce_queue
           : op == PROGRAM_UPDATE                        ? e->update_queue
                                                         : e->compute;
}

int profile_instr_begin(struct profile *p, enum program_list list, int at)
{
    if (!p || !p->active)
        return SHERD_OK;
    const struct program_instr *in = &p->engine->plan.program.list[list].at[at];
    SHERD_TRY(begin(&p->probe, queue_for(p, in->op),
        &(struct probe_span){ .kind = PROBE_PART, .name = program_op_name(in->op) }));
    struct profile_span *s = &p->spans[p->n_spans - 1];
    s->instr = in;
    s->list = list;
    s->at = at;
    return SHERD_OK;
}

int profile_instr_end(struct profile *p, enum program_list list, int at)
{
    if (!p || !p->active)
        return SHERD_OK;
    return end(&p->probe, queue_for(p, p->engine->plan.program.list[list].at[at].op));
}

int profile_part_begin(struct profile *p, const char *name)
{
    if (!p || !p->active)
        return SHERD_OK;
    return begin(&p->probe, p->engine->compute, &(struct probe_span){ .kind = PROBE_PART, .name = name });
}

int profile_part_end(struct profile *p)
{
    return !p || !p->active ? SHERD_OK : end(&p->probe, p->engine->compute);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Recording spans: see runtime/profile.h. Every span has two events on its queue, read when the step is over.
 */
#include "runtime/profile.h"

#include <stdio.h>
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
                                      : -1;
}

static int record(struct profile *p, struct sherd_queue *queue, int *event)
{
    if (p->used == p->n_events) {
        SHERD_TRY(mem_grow(&p->events, &p->events_cap, p->n_events + 1, sizeof(struct sherd_event *)));
        SHERD_TRY(sherd_event_create(&p->events[p->n_events], p->engine->dev));
        p->n_events++;
    }
    *event = p->used++;
    return sherd_event_record(p->events[*event], queue);
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
    return record(p, queue, &s->begin);
}

static int end(struct device_probe *probe, struct sherd_queue *queue)
{
    struct profile *p = (struct profile *)probe;
    int q = queue_of(p, queue);
    if (q < 0)
        return SHERD_OK;
    struct profile_span *s = &p->spans[p->open[q]];
    p->open[q] = s->parent;
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

int profile_step_begin(struct profile *p, int64_t step)
{
    int origin;
    if (!p || profile_full(p) || p->skip-- > 0)
        return SHERD_OK;
    SHERD_TRY(mem_grow(&p->steps, &p->steps_cap, p->n_steps + 1, sizeof(*p->steps)));
    p->first_span = p->n_spans;
    p->used = 0;
    for (int q = 0; q < PROFILE_QUEUES; q++)
        p->open[q] = -1;
    SHERD_TRY(record(p, p->engine->compute, &origin));
    SHERD_TRY(sherd_event_sync(p->events[origin]));
    p->steps[p->n_steps++] = (struct profile_step){ .step = step, .clock = clock_seconds() };
    p->active = 1;
    p->engine->dev->probe = &p->probe;
    return SHERD_OK;
}

/* What the compute queue spent on communication: its waits for other queues, and collectives of its own. */
static int is_exposed(const struct profile_span *s)
{
    return s->queue == PROFILE_COMPUTE && (s->kind == PROBE_WAIT || s->kind == PROBE_COLLECTIVE);
}

/* Communication that goes on when the compute queue is done is exposed too. */
static void sum_up(struct profile *p, struct profile_step *step)
{
    double computed = 0, last = 0;
    for (int i = p->first_span; i < p->n_spans; i++) {
        const struct profile_span *s = &p->spans[i];
        double ms = s->to - s->from;
        last = MAX(last, s->to);
        if (is_exposed(s)) {
            step->exposed += ms;
            step->busy -= s->parent >= 0 ? ms : 0;
        }
        if (s->queue == PROFILE_COMPUTE && s->parent < 0) {
            step->busy += s->kind == PROBE_PART ? ms : 0;
            computed = MAX(computed, s->to);
        }
    }
    step->exposed += last - computed;
    step->whole = MAX(step->whole, last); /* the first event comes a moment before the clock is read */
    step->idle = step->whole - step->busy - step->exposed;
}

int profile_step_end(struct profile *p)
{
    if (!p || !p->active)
        return SHERD_OK;
    struct profile_step *step = &p->steps[p->n_steps - 1];
    step->whole = 1e3 * (clock_seconds() - step->clock);
    p->active = 0;
    p->engine->dev->probe = NULL;
    for (int i = p->first_span; i < p->n_spans; i++) {
        struct profile_span *s = &p->spans[i];
        SHERD_TRY(sherd_event_elapsed(p->events[0], p->events[s->begin], &s->from));
        SHERD_TRY(sherd_event_elapsed(p->events[0], p->events[s->end], &s->to));
    }
    sum_up(p, step);
    return SHERD_OK;
}

/* ---- parts of a step ---- */

static struct sherd_queue *queue_for(const struct profile *p, enum program_op op)
{
    const struct sherd_engine *e = p->engine;
    return op == PROGRAM_GATHER || op == PROGRAM_PUBLISH ? e->gather_queue
           : op == PROGRAM_REDUCE                        ? e->reduce_queue
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

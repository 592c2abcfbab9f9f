/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which products and attentions one training step of a config consists of: its layers are run on operations
 * that do nothing, and a probe writes down what they ask for.
 */
#include "bench/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "runtime/dry.h"
#include "runtime/plan.h"

#define EVEN                                                                                                 \
    8 /* of longer rows that are set apart, cuda_matmul takes what is over as a product of its own           \
       */
#define ALIKE 0.05 /* sizes this near make one contest: the pieces of a head differ by a few rows */

struct walk {
    struct device_probe probe; /* first: the device calls with it */
    struct contest *out;
    int n;
};

static int near(int64_t a, int64_t b)
{
    return llabs(a - b) <= (int64_t)(ALIKE * (double)MAX(a, b));
}

static int same_matmul(const struct sherd_matmul *a, const struct sherd_matmul *b)
{
    return near(a->m, b->m) && near(a->n, b->n) && near(a->k, b->k) && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && !a->add == !b->add && (a->add == a->c) == (b->add == b->c) &&
           !a->bias == !b->bias && a->type == b->type && a->c_type == b->c_type &&
           !a->a_pitch == !b->a_pitch && !a->c_pitch == !b->c_pitch;
}

static struct sherd_matmul even_part(struct sherd_matmul a)
{
    if (a.c_pitch && a.trans_b)
        a.n -= a.n % EVEN;
    else if (a.a_pitch && a.trans_a)
        a.m -= a.m % EVEN;
    else if (a.a_pitch && !a.trans_a && !a.trans_b)
        a.k -= a.k % EVEN;
    return a;
}

/* The contest of such an operation, or a new one; NULL where there is no more room. */
static struct contest *contest_of(struct walk *w, enum op_index op, const union op_args *args)
{
    for (int i = 0; i < w->n; i++) {
        struct contest *c = &w->out[i];
        if (c->op == op && (op != OP_matmul || same_matmul(&c->args.matmul, &args->matmul)))
            return c;
    }
    if (w->n == CONTESTS)
        return NULL;
    struct contest *c = &w->out[w->n++];
    char shape[48];
    c->op = op;
    c->args = *args;
    c->flops = op_flops(op, args);
    c->current = -1;
    op_shape(op, args, shape);
    snprintf(c->title, sizeof(c->title), "%s %s", op_names[op], shape);
    return c;
}

static int note(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *span)
{
    struct walk *w = (struct walk *)probe;
    union op_args args = { 0 };
    (void)queue;
    if (span->kind != PROBE_OP)
        return SHERD_OK;
    if (span->op == OP_matmul)
        args.matmul = even_part(*(const struct sherd_matmul *)span->args);
    else if (span->op == OP_attention_forward)
        args.forward = *(const struct sherd_attention_forward *)span->args;
    else if (span->op == OP_attention_backward)
        args.backward = *(const struct sherd_attention_backward *)span->args;
    else
        return SHERD_OK;
    struct contest *c = contest_of(w, span->op, &args);
    if (!c)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "the model has more than %d different products", CONTESTS);
    c->calls++;
    return SHERD_OK;
}

static int noted(struct device_probe *probe, struct sherd_queue *queue)
{
    (void)probe;
    (void)queue;
    return SHERD_OK;
}

static int by_work(const void *a, const void *b)
{
    const struct contest *x = a, *y = b;
    double p = x->flops * x->calls, q = y->flops * y->calls;
    return (p < q) - (p > q);
}

/* The first micro-batch's forward and backward. */
static int walk_step(struct walk *w, const struct plan *p)
{
    struct dry dry;
    int st = dry_init(&dry, p, &w->probe);
    for (int l = 0; l < p->spec->n_layers && st == SHERD_OK; l++)
        st = dry_layer(&dry, l, DRY_FORWARD);
    for (int l = p->spec->n_layers - 1; l >= p->program.first_trained && st == SHERD_OK; l--)
        st = dry_layer(&dry, l, DRY_NEW);
    dry_finish(&dry);
    return st;
}

int search_list(struct contest *out, int *n, const struct sherd_config *config)
{
    struct walk w = { .probe = { .ops = 1, .begin = note, .end = noted }, .out = out };
    struct sherd_model *model = NULL;
    struct plan plan;
    SHERD_TRY(sherd_config_model(&model, config));
    int st = plan_init(&plan, config, model, "cuda", 2, 1);
    if (st == SHERD_OK) {
        st = walk_step(&w, &plan);
        plan_finish(&plan);
    }
    sherd_model_destroy(model);
    qsort(out, (size_t)w.n, sizeof(*out), by_work);
    *n = w.n;
    return st;
}

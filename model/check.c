/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The check of a model's layers, one by one in float: the derivative of an objective along random directions
 * of every parameter and of x, by differences of forward, against the gradient that backward gives. The
 * objective is the loss for the last layer and a random weighting of y for the others. Beside it the rules of
 * the contract that are easy to break: dw is added to, dx overwritten, nothing unset is read, nothing is
 * written past the sizes asked for, EVAL computes what TRAIN does.
 */
#include "model/model.h"

#include <math.h>
#include <string.h>

#include <sherd/ops.h>
#include "base/rng.h"
#include "base/status.h"
#include "device/ops.h"

#define DIRECTIONS 3
#define STEP 1e-2       /* of a direction, whose size is that of the tensor */
#define TOLERANCE 3e-3  /* of the derivative's usual size along a random direction */
#define NOISE 2e-5      /* of the objective's size: what rounding makes of a derivative that is zero */
#define SAME 1e-4       /* two results that should differ by rounding alone, relative */
#define UNSET 0xff      /* this byte throughout is a NaN */
#define GUARD_BYTES 256 /* behind saved and scratch */

/* What is differentiated: a parameter of the unit, or x. */
struct tensor {
    const char *name;
    int64_t n;
    float *value, *trial, *grad, *direction;
    void *dev, *dev_grad; /* dev_grad NULL for a frozen parameter */
};

struct trial {
    struct sherd_queue *queue;
    struct sherd_device *dev;
    struct arena arena; /* host memory */
    void **blocks;      /* device memory */
    int n_blocks, cap_blocks;
    const struct sherd_layer *layer;
    int is_last;
    uint64_t seed;
    struct sherd_layer_plan plan;
    struct sherd_layer_sizes sizes;
    struct sherd_run run;
    struct tensor *tensors; /* the unit's parameters, then x */
    int n_params, n_tensors;
    int64_t y_elems;
    float *y, *dy; /* host */
    void *dev_dy;
};

/* ---- memory ---- */

static int take_device(struct trial *t, void *out, size_t bytes)
{
    void *p = NULL;
    SHERD_TRY(mem_grow(&t->blocks, &t->cap_blocks, t->n_blocks + 1, sizeof(*t->blocks)));
    SHERD_TRY(sherd_device_alloc(t->dev, &p, MAX(bytes, 1)));
    t->blocks[t->n_blocks++] = p;
    memcpy(out, &p, sizeof(p));
    return SHERD_OK;
}

static int take_floats(struct trial *t, float **out, int64_t n)
{
    *out = arena_zalloc(&t->arena, (size_t)MAX(n, 1), sizeof(**out));
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

static int copy(struct trial *t, void *dst, const void *src, size_t bytes)
{
    SHERD_TRY(sherd_copy(t->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes }));
    return sherd_queue_sync(t->queue);
}

static int fill(struct trial *t, void *dst, size_t bytes, unsigned char byte)
{
    return sherd_fill(t->queue, &(struct sherd_fill){ .dst = dst, .bytes = bytes, .byte = byte });
}

/* ---- setting up ---- */

static float drawn_std(const struct sherd_param *p)
{
    if (p->dims == 1)
        return 0.2f;
    int64_t fan = p->shape[0];
    for (int i = 1; i < p->dims; i++)
        fan = MAX(fan, p->shape[i]);
    return 1.0f / sqrtf((float)fan);
}

/* Not the initial values: ones and zeros would hide mistakes. */
static int add_tensor(struct trial *t, const char *name, int64_t n, float std, float mean, int frozen)
{
    struct tensor *v = &t->tensors[t->n_tensors++];
    *v = (struct tensor){ .name = name, .n = n };
    SHERD_TRY(take_floats(t, &v->value, n));
    SHERD_TRY(take_floats(t, &v->trial, n));
    SHERD_TRY(take_floats(t, &v->grad, n));
    SHERD_TRY(take_floats(t, &v->direction, n));
    rng_normal(v->value, n, t->seed, rng_stream(name) ^ rng_stream("check/"), 0, std);
    for (int64_t i = 0; i < n; i++)
        v->value[i] += mean;
    SHERD_TRY(take_device(t, &v->dev, (size_t)n * sizeof(float)));
    if (!frozen) {
        SHERD_TRY(take_device(t, &v->dev_grad, (size_t)n * sizeof(float) + GUARD_BYTES));
        SHERD_TRY(fill(t, v->dev_grad, (size_t)n * sizeof(float) + GUARD_BYTES, UNSET));
    }
    return copy(t, v->dev, v->value, (size_t)n * sizeof(float));
}

static int add_unit(struct trial *t, const struct sherd_unit *unit)
{
    size_t n = (size_t)unit->n_params;
    t->tensors = arena_zalloc(&t->arena, n + 1, sizeof(*t->tensors));
    const void **w = arena_zalloc(&t->arena, n, sizeof(*w));
    void **dw = arena_zalloc(&t->arena, n, sizeof(*dw));
    if (!t->tensors || !w || !dw)
        return SHERD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct sherd_param *p = &unit->params[i];
        SHERD_TRY(add_tensor(t, p->name, model_param_elems(p), drawn_std(p),
            p->init == SHERD_INIT_ONE ? 1.0f : 0.0f, (p->flags & SHERD_FROZEN) != 0));
        w[i] = t->tensors[i].dev;
        dw[i] = t->tensors[i].dev_grad;
    }
    t->n_params = (int)n;
    t->run.w = w;
    t->run.dw = dw;
    return SHERD_OK;
}

/* Tokens and targets; every fifth target is ignored, and one never is. */
static int add_batch(struct trial *t, int64_t rows, int64_t vocab)
{
    float *draws = NULL;
    int32_t *tokens = arena_zalloc(&t->arena, (size_t)rows, sizeof(*tokens));
    int32_t *targets = arena_zalloc(&t->arena, (size_t)rows, sizeof(*targets));
    SHERD_TRY(take_floats(t, &draws, 2 * rows));
    if (!tokens || !targets)
        return SHERD_ENOMEM;
    double count = 0;
    rng_uniform(draws, 2 * rows, t->seed, rng_stream("check/tokens"), 0);
    for (int64_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(draws[i] * (float)vocab);
        targets[i] = i % 5 == 4 ? -1 : (int32_t)(draws[rows + i] * (float)vocab);
        count += targets[i] >= 0;
    }
    void *dev_tokens, *dev_targets, *dev_count, *dev_loss;
    size_t bytes = (size_t)rows * sizeof(int32_t);
    SHERD_TRY(take_device(t, &dev_tokens, bytes));
    SHERD_TRY(take_device(t, &dev_targets, bytes));
    SHERD_TRY(take_device(t, &dev_count, sizeof(count)));
    SHERD_TRY(take_device(t, &dev_loss, sizeof(double)));
    SHERD_TRY(copy(t, dev_tokens, tokens, bytes));
    SHERD_TRY(copy(t, dev_targets, targets, bytes));
    SHERD_TRY(copy(t, dev_count, &count, sizeof(count)));
    t->run.tokens = dev_tokens;
    t->run.targets = dev_targets;
    t->run.count = dev_count;
    t->run.loss_sum = dev_loss;
    return SHERD_OK;
}

static int check_sizes(const struct trial *t)
{
    if (t->sizes.out_width < 0 || (t->sizes.out_width == 0) != t->is_last)
        return SHERD_FAIL(SHERD_EINVAL, "layer '%s': sizes() sets out_width %lld, %s", t->layer->name,
            (long long)t->sizes.out_width,
            t->is_last ? "but the last layer ends in the loss and must set 0"
                       : "but only the last layer may set 0");
    return SHERD_OK;
}

static int open_trial(
    struct trial *t, const struct sherd_model_spec *spec, int index, const struct sherd_shape *in)
{
    const struct sherd_layer *layer = t->layer = &spec->layers[index];
    int64_t rows = in->batch * in->seq;
    t->is_last = index == spec->n_layers - 1;
    t->plan.in = *in;
    t->plan.type = SHERD_F32;
    t->plan.device = t->dev->ops->kind;
    SHERD_TRY(model_layer_sizes(layer, &t->plan, &t->sizes));
    SHERD_TRY(check_sizes(t));
    SHERD_TRY(sherd_queue_create(&t->queue, t->dev, SHERD_QUEUE_COMPUTE));
    t->run = (struct sherd_run){ .queue = t->queue,
        .arg = layer->arg,
        .in = *in,
        .type = SHERD_F32,
        .grad_type = SHERD_F32,
        .recompute = t->plan.recompute };
    SHERD_TRY(add_unit(t, &spec->units[layer->unit]));
    if (layer->ops->overwrites) {
        t->run.fresh = arena_zalloc(&t->arena, (size_t)t->n_params, 1);
        if (!t->run.fresh)
            return SHERD_ENOMEM;
    }
    if (index > 0) {
        SHERD_TRY(add_tensor(t, "x", rows * in->width, 1.0f, 0.0f, 0));
        t->run.x = t->tensors[t->n_params].dev;
        t->run.dx = t->tensors[t->n_params].dev_grad;
    }
    SHERD_TRY(add_batch(t, rows, spec->vocab ? spec->vocab : 2));
    t->y_elems = rows * t->sizes.out_width;
    if (!t->is_last) {
        size_t bytes = (size_t)t->y_elems * sizeof(float);
        SHERD_TRY(take_floats(t, &t->y, t->y_elems));
        SHERD_TRY(take_floats(t, &t->dy, t->y_elems));
        SHERD_TRY(take_device(t, &t->run.y, bytes + GUARD_BYTES));
        SHERD_TRY(take_device(t, &t->dev_dy, bytes));
        rng_normal(t->dy, t->y_elems, t->seed, rng_stream("check/dy"), 0, 1.0f);
        SHERD_TRY(copy(t, t->dev_dy, t->dy, bytes));
        t->run.dy = t->dev_dy;
    }
    SHERD_TRY(take_device(t, &t->run.saved, t->sizes.saved_bytes + GUARD_BYTES));
    return take_device(t, &t->run.scratch, t->sizes.scratch_bytes + GUARD_BYTES);
}

static void close_trial(struct trial *t)
{
    if (t->queue)
        sherd_queue_destroy(t->queue);
    for (int i = 0; i < t->n_blocks; i++)
        sherd_device_free(t->dev, t->blocks[i]);
    mem_free(t->blocks);
    arena_finish(&t->arena);
}

/* ---- running ---- */

static int run_forward(struct trial *t, enum sherd_mode mode)
{
    t->run.mode = mode;
    SHERD_TRY(fill(t, t->run.saved, t->sizes.saved_bytes + GUARD_BYTES, UNSET));
    SHERD_TRY(fill(t, t->run.scratch, t->sizes.scratch_bytes + GUARD_BYTES, UNSET));
    SHERD_TRY(fill(t, t->run.loss_sum, sizeof(double), 0));
    if (t->run.y)
        SHERD_TRY(fill(t, t->run.y, (size_t)t->y_elems * sizeof(float) + GUARD_BYTES, UNSET));
    return model_layer_forward(t->layer, &t->run);
}

static int run_backward(struct trial *t)
{
    if (t->plan.recompute == SHERD_RECOMPUTE_BLOCK && !t->is_last) {
        SHERD_TRY(fill(t, t->run.saved, t->sizes.saved_bytes + GUARD_BYTES, UNSET));
        t->run.again = 1;
        SHERD_TRY(model_layer_forward(t->layer, &t->run));
        t->run.again = 0;
    }
    SHERD_TRY(fill(t, t->run.scratch, t->sizes.scratch_bytes + GUARD_BYTES, UNSET));
    return model_layer_backward(t->layer, &t->run);
}

/* The objective after a run, and its size: what its terms amount to without their signs. */
static int read_objective(struct trial *t, double *out, double *size)
{
    double sum = 0, squares = 0;
    if (t->is_last) {
        double count = 0;
        SHERD_TRY(copy(t, &sum, t->run.loss_sum, sizeof(sum)));
        SHERD_TRY(copy(t, &count, t->run.count, sizeof(count)));
        sum /= count;
        squares = sum * sum;
    } else {
        SHERD_TRY(copy(t, t->y, t->run.y, (size_t)t->y_elems * sizeof(float)));
        for (int64_t i = 0; i < t->y_elems; i++) {
            double term = (double)t->y[i] * t->dy[i];
            sum += term;
            squares += term * term;
        }
    }
    if (!isfinite(sum))
        return SHERD_FAIL(SHERD_EINVAL, "layer '%s': %s", t->layer->name,
            t->is_last ? "the loss is not finite; does it read scratch or saved before writing them?"
                       : "y has values that are unset or not finite after forward");
    *out = sum;
    *size = sqrt(squares);
    return SHERD_OK;
}

/* What lies behind a region is as it was filled. `what` ends a sentence. */
static int check_guard(struct trial *t, const void *region, size_t bytes, const char *what, const char *name)
{
    unsigned char guard[GUARD_BYTES];
    SHERD_TRY(copy(t, guard, (const char *)region + bytes, sizeof(guard)));
    for (size_t i = 0; i < sizeof(guard); i++) {
        if (guard[i] != UNSET)
            return SHERD_FAIL(SHERD_EINVAL, "layer '%s': writes past the %zu bytes of %s%s", t->layer->name,
                bytes, what, name);
    }
    return SHERD_OK;
}

static int check_guards(struct trial *t)
{
    static const char asked[] = " that its sizes() asks for";
    for (int i = 0; i < t->n_tensors; i++) {
        struct tensor *v = &t->tensors[i];
        if (v->dev_grad)
            SHERD_TRY(check_guard(t, v->dev_grad, (size_t)v->n * sizeof(float), "the gradient of ", v->name));
    }
    if (t->run.y)
        SHERD_TRY(check_guard(t, t->run.y, (size_t)t->y_elems * sizeof(float), "y", ""));
    SHERD_TRY(check_guard(t, t->run.saved, t->sizes.saved_bytes, "saved", asked));
    return check_guard(t, t->run.scratch, t->sizes.scratch_bytes, "scratch", asked);
}

/* Compares two results that should differ by rounding alone: b against factor * a. */
static int same(const float *a, double factor, const float *b, int64_t n)
{
    double squares = 0, error = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = factor * a[i], off = b[i] - want;
        squares += want * want;
        error += off * off;
    }
    return sqrt(error) <= SAME * sqrt(squares) + 1e-12;
}

/* Zeroes the gradients that the first backward of an overwriting layer left alone, as the engine does. */
static int settle(struct trial *t)
{
    for (int i = 0; t->run.fresh && i < t->n_params; i++) {
        if (t->run.fresh[i] && t->tensors[i].dev_grad)
            SHERD_TRY(fill(t, t->tensors[i].dev_grad, (size_t)t->tensors[i].n * sizeof(float), 0));
        t->run.fresh[i] = 0;
    }
    return SHERD_OK;
}

/* Forward and backward twice: the second time on top of the first gradients, which shows whether they are
 * added to (dw) and overwritten (dx). The first time dw is zero, or unset for layers that heed run->fresh. */
static int run_gradients(struct trial *t)
{
    for (int i = 0; i < t->n_tensors; i++) {
        struct tensor *v = &t->tensors[i];
        int zero = i < t->n_params && !t->run.fresh;
        if (v->dev_grad)
            SHERD_TRY(fill(t, v->dev_grad, (size_t)v->n * sizeof(float), zero ? 0 : UNSET));
        if (i < t->n_params && t->run.fresh)
            t->run.fresh[i] = 1;
    }
    for (int pass = 0; pass < 2; pass++) {
        SHERD_TRY(run_forward(t, SHERD_TRAIN));
        SHERD_TRY(run_backward(t));
        SHERD_TRY(settle(t));
        for (int i = 0; i < t->n_tensors; i++) {
            struct tensor *v = &t->tensors[i];
            if (!v->dev_grad)
                continue;
            SHERD_TRY(copy(t, pass ? v->trial : v->grad, v->dev_grad, (size_t)v->n * sizeof(float)));
            for (int64_t k = 0; !pass && t->run.fresh && i < t->n_params && k < v->n; k++)
                if (!isfinite(v->grad[k]))
                    return SHERD_FAIL(SHERD_EINVAL,
                        "layer '%s': clears the fresh flag of '%s' without overwriting its gradient",
                        t->layer->name, v->name);
            if (pass && !same(v->grad, i < t->n_params ? 2.0 : 1.0, v->trial, v->n))
                return SHERD_FAIL(SHERD_EINVAL, "layer '%s': backward must %s the gradient of '%s'",
                    t->layer->name, i < t->n_params ? "add to" : "overwrite", v->name);
        }
    }
    return check_guards(t);
}

/* ---- differences ---- */

static double norm_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

/* Objective with the tensor moved by `step` along its direction. */
static int objective_at(struct trial *t, struct tensor *v, double step, double *out)
{
    double size;
    for (int64_t i = 0; i < v->n; i++)
        v->trial[i] = (float)(v->value[i] + step * v->direction[i]);
    SHERD_TRY(copy(t, v->dev, v->trial, (size_t)v->n * sizeof(float)));
    SHERD_TRY(run_forward(t, SHERD_EVAL));
    return read_objective(t, out, &size);
}

/* Fourth-order central difference. */
static int difference(struct trial *t, struct tensor *v, double *out)
{
    double f[4];
    const double at[4] = { -2, -1, 1, 2 };
    for (int i = 0; i < 4; i++)
        SHERD_TRY(objective_at(t, v, at[i] * STEP, &f[i]));
    *out = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * STEP);
    return copy(t, v->dev, v->value, (size_t)v->n * sizeof(float));
}

static int check_tensor(struct trial *t, struct tensor *v, double size)
{
    double spread = norm_of(v->value, v->n) / sqrt((double)v->n);
    double usual = norm_of(v->grad, v->n) * spread;
    if (!isfinite(usual))
        return SHERD_FAIL(SHERD_EINVAL,
            "layer '%s': the gradient of '%s' has values that are unset or not finite", t->layer->name,
            v->name);
    for (int k = 0; k < DIRECTIONS; k++) {
        double want = 0, got = 0;
        rng_normal(v->direction, v->n, t->seed + 1 + (uint64_t)k, rng_stream(v->name), 0, (float)spread);
        SHERD_TRY(difference(t, v, &want));
        for (int64_t i = 0; i < v->n; i++)
            got += (double)v->grad[i] * v->direction[i];
        if (!(fabs(got - want) <= TOLERANCE * MAX(usual, fabs(want)) + NOISE * size))
            return SHERD_FAIL(SHERD_EINVAL,
                "layer '%s': the gradient of '%s' is wrong: along a random direction backward says %.6g, "
                "differences of forward say %.6g",
                t->layer->name, v->name, got, want);
    }
    return SHERD_OK;
}

static int check_layer(struct trial *t)
{
    double train, eval, size;
    SHERD_TRY(run_gradients(t));
    SHERD_TRY(read_objective(t, &train, &size));
    SHERD_TRY(run_forward(t, SHERD_EVAL));
    SHERD_TRY(read_objective(t, &eval, &size));
    if (fabs(train - eval) > SAME * size)
        return SHERD_FAIL(SHERD_EINVAL, "layer '%s': %s differs between TRAIN (%.6g) and EVAL (%.6g)",
            t->layer->name, t->is_last ? "the loss" : "a weighted sum of y", train, eval);
    for (int i = 0; i < t->n_tensors; i++) {
        if (t->tensors[i].dev_grad)
            SHERD_TRY(check_tensor(t, &t->tensors[i], size));
    }
    return SHERD_OK;
}

int sherd_model_check(
    const struct sherd_model *model, struct sherd_device *dev, int64_t batch, int64_t seq, uint64_t seed)
{
    if (!model || !dev)
        return SHERD_FAIL(SHERD_EINVAL, "model check: the %s is NULL", model ? "device" : "model");
    if (batch < 1 || seq < 1)
        return SHERD_FAIL(SHERD_EINVAL, "model check: batch is %lld and seq %lld, both must be at least 1",
            (long long)batch, (long long)seq);
    const struct sherd_model_spec *spec = &model->spec;
    struct sherd_shape in = { .batch = batch, .seq = seq };
    int st = SHERD_OK;
    int64_t width = 0;
    for (int i = 0; i < spec->n_layers && st == SHERD_OK; i++, in.width = width)
        for (int k = SHERD_RECOMPUTE_NONE; k <= SHERD_RECOMPUTE_BLOCK && st == SHERD_OK; k++) {
            struct trial t = { .dev = dev, .seed = seed, .plan.recompute = (enum sherd_recompute)k };
            st = open_trial(&t, spec, i, &in);
            if (st == SHERD_OK)
                st = check_layer(&t);
            width = t.sizes.out_width;
            close_trial(&t);
        }
    return st;
}

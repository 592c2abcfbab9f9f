/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The families against PyTorch by a direct loop over their layers on the CPU, with no engine: logits, loss,
 * every gradient, and ten AdamW steps with clipping.
 */
#include "tests/check.h"
#include "tests/golden/gold.h"

#include <math.h>
#include <stdlib.h>

#include <sherd/ops.h>
#include "base/half.h"
#include "base/mem.h"

#define MAX_LAYERS 8
#define MAX_PARAMS 16

/* One parameter on the device; m, v and master for the optimizer. */
struct weight {
    const struct sherd_param *spec;
    int64_t elems;
    void *w, *dw;
    float *master, *m, *v;
};

struct runner {
    struct gold gold;
    struct sherd_device *dev;
    struct sherd_queue *queue;
    struct sherd_model *model;
    const struct sherd_model_spec *spec;
    enum sherd_dtype type;
    struct weight weights[MAX_LAYERS][MAX_PARAMS]; /* by unit */
    void *w[MAX_LAYERS][MAX_PARAMS], *dw[MAX_LAYERS][MAX_PARAMS];
    void *y[MAX_LAYERS], *dy[MAX_LAYERS], *saved[MAX_LAYERS]; /* by layer */
    void *scratch, *op_scratch;
    int64_t width[MAX_LAYERS]; /* of x */
    int32_t *tokens, *targets;
    double *scalars; /* loss sum, count, square sum, norm */
    float *factor, *logits;
};

static void *take(struct runner *r, size_t bytes)
{
    void *p = NULL;
    ASSERT_OK(sherd_device_alloc(r->dev, &p, MAX(bytes, 1)));
    ASSERT_OK(sherd_fill(r->queue, &(struct sherd_fill){ .dst = p, .bytes = MAX(bytes, 1), .byte = 0 }));
    return p;
}

static void copy(struct runner *r, void *dst, const void *src, size_t bytes)
{
    ASSERT_OK(sherd_copy(r->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes }));
    ASSERT_OK(sherd_queue_sync(r->queue));
}

static void zero(struct runner *r, void *dst, size_t bytes)
{
    ASSERT_OK(sherd_fill(r->queue, &(struct sherd_fill){ .dst = dst, .bytes = bytes, .byte = 0 }));
}

/* Values of a parameter as the file has them: its own, or those of its parts one after the other. */
static float *golden(struct runner *r, const char *prefix, const struct weight *weight)
{
    const struct sherd_param *p = weight->spec;
    if (!p->parts)
        return gold_floats(&r->gold, prefix, p->name, weight->elems);
    float *whole = mem_zalloc((size_t)weight->elems, sizeof(*whole));
    int64_t at = 0;
    for (int i = 0; i < p->n_parts; i++) {
        int64_t elems = p->parts[i].rows * (p->dims == 2 ? p->shape[1] : 1);
        float *part = gold_floats(&r->gold, prefix, p->parts[i].name, elems);
        memcpy(whole + at, part, (size_t)elems * sizeof(*whole));
        mem_free(part);
        at += elems;
    }
    return whole;
}

static void open_weight(struct runner *r, struct weight *weight, const struct sherd_param *p)
{
    weight->spec = p;
    weight->elems = p->dims == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
    size_t n = (size_t)weight->elems;
    weight->w = take(r, n * sherd_dtype_bytes(r->type));
    weight->dw = take(r, n * sizeof(float));
    weight->master = take(r, n * sizeof(float));
    weight->m = take(r, n * sizeof(float));
    weight->v = take(r, n * sizeof(float));
    float *values = golden(r, "w/", weight);
    copy(r, weight->master, values, n * sizeof(float));
    ASSERT_OK(sherd_cast(r->queue, &(struct sherd_cast){ .y = weight->w,
                                       .x = weight->master,
                                       .n = weight->elems,
                                       .y_type = r->type,
                                       .x_type = SHERD_F32 }));
    mem_free(values);
}

static void open_layers(struct runner *r)
{
    struct sherd_shape in = { r->gold.batch, r->gold.seq, 0 };
    int64_t rows = in.batch * in.seq;
    size_t scratch = 0;
    for (int i = 0; i < r->spec->n_layers; i++) {
        const struct sherd_layer *layer = &r->spec->layers[i];
        struct sherd_layer_sizes sizes;
        struct sherd_layer_plan plan = { .in = in, .type = r->type, .device = "cpu" };
        ASSERT_OK(layer->ops->sizes(layer->arg, &plan, &sizes));
        r->width[i] = in.width;
        in.width = sizes.out_width;
        r->y[i] = take(r, (size_t)(rows * in.width) * sizeof(float));
        r->dy[i] = take(r, (size_t)(rows * in.width) * sizeof(float));
        r->saved[i] = take(r, sizes.saved_bytes);
        scratch = MAX(scratch, sizes.scratch_bytes);
    }
    r->scratch = take(r, scratch);
    r->tokens = take(r, (size_t)rows * sizeof(int32_t));
    r->targets = take(r, (size_t)rows * sizeof(int32_t));
    r->scalars = take(r, 4 * sizeof(double));
    r->factor = take(r, sizeof(float));
    r->logits = take(r, (size_t)(rows * r->spec->vocab) * sizeof(float));
}

static void open_runner(struct runner *r, const char *name, enum sherd_dtype type)
{
    *r = (struct runner){ .type = type };
    gold_open(&r->gold, name);
    ASSERT_OK(sherd_device_open(&r->dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    ASSERT_OK(sherd_queue_create(&r->queue, r->dev, SHERD_QUEUE_COMPUTE));
    ASSERT_OK(sherd_model_build(&r->model, &r->gold.config));
    r->spec = sherd_model_spec_of(r->model);
    assert_true(r->spec->n_layers <= MAX_LAYERS);
    size_t op_scratch = 0;
    for (int u = 0; u < r->spec->n_units; u++) {
        assert_true(r->spec->units[u].n_params <= MAX_PARAMS);
        for (int i = 0; i < r->spec->units[u].n_params; i++) {
            struct weight *weight = &r->weights[u][i];
            open_weight(r, weight, &r->spec->units[u].params[i]);
            r->w[u][i] = weight->w;
            r->dw[u][i] = weight->dw;
            struct sherd_square_sum sum = { .n = weight->elems, .type = SHERD_F32 };
            op_scratch = MAX(op_scratch, sherd_square_sum_scratch(&sum));
        }
    }
    r->op_scratch = take(r, op_scratch);
    open_layers(r);
}

static void close_runner(struct runner *r)
{
    void *rest[] = { r->scratch, r->op_scratch, r->tokens, r->targets, r->scalars, r->factor, r->logits };
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++) {
            struct weight *weight = &r->weights[u][i];
            void *all[] = { weight->w, weight->dw, weight->master, weight->m, weight->v };
            for (size_t k = 0; k < ARRAY_LEN(all); k++)
                sherd_device_free(r->dev, all[k]);
        }
    }
    for (int i = 0; i < r->spec->n_layers; i++) {
        sherd_device_free(r->dev, r->y[i]);
        sherd_device_free(r->dev, r->dy[i]);
        sherd_device_free(r->dev, r->saved[i]);
    }
    for (size_t k = 0; k < ARRAY_LEN(rest); k++)
        sherd_device_free(r->dev, rest[k]);
    sherd_queue_destroy(r->queue);
    sherd_model_destroy(r->model);
    sherd_device_close(r->dev);
    gold_close(&r->gold);
}

static struct sherd_run run_of(struct runner *r, int layer, enum sherd_mode mode)
{
    int unit = r->spec->layers[layer].unit, last = r->spec->n_layers - 1;
    return (struct sherd_run){
        .queue = r->queue,
        .arg = r->spec->layers[layer].arg,
        .mode = mode,
        .in = { r->gold.batch, r->gold.seq, r->width[layer] },
        .type = r->type,
        .grad_type = SHERD_F32,
        .w = (const void *const *)r->w[unit],
        .dw = r->dw[unit],
        .x = layer ? r->y[layer - 1] : NULL,
        .y = layer < last ? r->y[layer] : NULL,
        .dy = layer < last ? r->dy[layer] : NULL,
        .dx = layer ? r->dy[layer - 1] : NULL,
        .saved = r->saved[layer],
        .scratch = r->scratch,
        .tokens = r->tokens,
        .targets = r->targets,
        .loss_sum = &r->scalars[0],
        .count = &r->scalars[1],
        .logits = mode == SHERD_EVAL ? r->logits : NULL,
    };
}

/* Brings the tokens of a step and zeroes sums and gradients. */
static void begin(struct runner *r, int64_t step)
{
    int64_t rows = r->gold.batch * r->gold.seq, all = r->gold.steps * rows;
    const int32_t *tokens = gold_raw(&r->gold, "tokens", "I32", all);
    const int32_t *targets = gold_raw(&r->gold, "targets", "I32", all);
    double scalars[4] = { 0 };
    for (int64_t i = 0; i < rows; i++)
        scalars[1] += targets[step * rows + i] >= 0;
    assert_true(scalars[1] > 0 && scalars[1] < (double)rows);
    copy(r, r->tokens, tokens + step * rows, (size_t)rows * sizeof(int32_t));
    copy(r, r->targets, targets + step * rows, (size_t)rows * sizeof(int32_t));
    copy(r, r->scalars, scalars, sizeof(scalars));
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++)
            zero(r, r->dw[u][i], (size_t)r->weights[u][i].elems * sizeof(float));
    }
}

/* Mean loss of the step. */
static double run_step(struct runner *r, int64_t step, enum sherd_mode mode)
{
    double scalars[2];
    begin(r, step);
    for (int i = 0; i < r->spec->n_layers; i++) {
        struct sherd_run run = run_of(r, i, mode);
        ASSERT_OK(r->spec->layers[i].ops->forward(&run));
    }
    for (int i = r->spec->n_layers - 1; i >= 0 && mode == SHERD_TRAIN; i--) {
        struct sherd_run run = run_of(r, i, mode);
        ASSERT_OK(r->spec->layers[i].ops->backward(&run));
    }
    copy(r, scalars, r->scalars, sizeof(scalars));
    return scalars[0] / scalars[1];
}

static void update_weight(struct runner *r, struct weight *weight, int64_t step)
{
    ASSERT_OK(sherd_adamw(r->queue,
        &(struct sherd_adamw){
            .param = weight->w,
            .master = weight->master,
            .m = weight->m,
            .v = weight->v,
            .grad = weight->dw,
            .factor = r->factor,
            .n = weight->elems,
            .step = step + 1,
            .lr = (float)gold_number(&r->gold, "lr"),
            .beta1 = (float)gold_number(&r->gold, "beta1"),
            .beta2 = (float)gold_number(&r->gold, "beta2"),
            .eps = (float)gold_number(&r->gold, "eps"),
            .weight_decay =
                weight->spec->flags & SHERD_NO_DECAY ? 0 : (float)gold_number(&r->gold, "weight_decay"),
            .param_type = r->type,
            .grad_type = SHERD_F32,
            .state_type = SHERD_F32,
        }));
}

/* Clips and updates; the norm before clipping. */
static double update(struct runner *r, int64_t step)
{
    double norm = 0;
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++)
            ASSERT_OK(sherd_square_sum(r->queue, &(struct sherd_square_sum){ .sum = &r->scalars[2],
                                                     .x = r->weights[u][i].dw,
                                                     .n = r->weights[u][i].elems,
                                                     .type = SHERD_F32,
                                                     .scratch = r->op_scratch }));
    }
    ASSERT_OK(sherd_clip_factor(r->queue, &(struct sherd_clip_factor){ .factor = r->factor,
                                              .norm = &r->scalars[3],
                                              .square_sum = &r->scalars[2],
                                              .max_norm = (float)gold_number(&r->gold, "clip") }));
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++)
            update_weight(r, &r->weights[u][i], step);
    }
    copy(r, &norm, &r->scalars[3], sizeof(norm));
    return norm;
}

/* ---- tests ---- */

static void near(const char *what, const char *name, double error, double limit)
{
    if (!(error <= limit))
        fail_msg("%s of %s: relative error %.2e, allowed %.0e", what, name, error, limit);
}

static void compare_logits(struct runner *r, const char *name, double limit)
{
    int64_t n = r->gold.batch * r->gold.seq * r->spec->vocab;
    const double *loss = gold_raw(&r->gold, "loss", "F64", r->gold.steps);
    float *logits = mem_zalloc((size_t)n, sizeof(*logits));
    double got = run_step(r, 0, SHERD_EVAL);
    copy(r, logits, r->logits, (size_t)n * sizeof(*logits));
    near("logits", name, gold_error(logits, gold_raw(&r->gold, "logits", "F32", n), n), limit);
    near("loss in EVAL mode", name, fabs(got / loss[0] - 1), limit);
    mem_free(logits);
}

static void compare_gradients(struct runner *r, const char *name, double limit)
{
    const double *loss = gold_raw(&r->gold, "loss", "F64", r->gold.steps);
    near("loss", name, fabs(run_step(r, 0, SHERD_TRAIN) / loss[0] - 1), limit);
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++) {
            struct weight *weight = &r->weights[u][i];
            size_t bytes = (size_t)weight->elems * sizeof(float);
            float *got = mem_zalloc((size_t)weight->elems, sizeof(*got)), *want = golden(r, "g/", weight);
            copy(r, got, weight->dw, bytes);
            near("gradient", weight->spec->name, gold_error(got, want, weight->elems), limit);
            mem_free(got);
            mem_free(want);
        }
    }
}

/* How far the weights have moved. */
static void compare_moves(struct runner *r, double limit)
{
    for (int u = 0; u < r->spec->n_units; u++) {
        for (int i = 0; i < r->spec->units[u].n_params; i++) {
            struct weight *weight = &r->weights[u][i];
            float *got = mem_zalloc((size_t)weight->elems, sizeof(*got));
            float *from = golden(r, "w/", weight), *want = golden(r, "d/", weight);
            copy(r, got, weight->master, (size_t)weight->elems * sizeof(float));
            for (int64_t k = 0; k < weight->elems; k++)
                got[k] -= from[k];
            near("change after ten steps", weight->spec->name, gold_error(got, want, weight->elems), limit);
            mem_free(got);
            mem_free(from);
            mem_free(want);
        }
    }
}

static void f32(void **state)
{
    struct runner r;
    const char *name = *state;
    open_runner(&r, name, SHERD_F32);
    compare_logits(&r, name, 3e-6);
    compare_gradients(&r, name, 1e-5);
    const double *loss = gold_raw(&r.gold, "loss", "F64", r.gold.steps);
    const double *norm = gold_raw(&r.gold, "norm", "F64", r.gold.steps);
    for (int64_t step = 0; step < r.gold.steps; step++) {
        near("loss of a step", name, fabs(run_step(&r, step, SHERD_TRAIN) / loss[step] - 1), 1e-5);
        near("gradient norm of a step", name, fabs(update(&r, step) / norm[step] - 1), 1e-5);
    }
    compare_moves(&r, 1e-3); /* the file has them in F16 */
    close_runner(&r);
}

static void bf16_storage(void **state)
{
    struct runner r;
    open_runner(&r, *state, SHERD_BF16);
    compare_logits(&r, *state, 3e-2);
    compare_gradients(&r, *state, 5e-2);
    close_runner(&r);
}

static char gpt2[] = "gpt2", llama[] = "llama", tied[] = "llama-tied", llama3[] = "llama3",
            stretched[] = "linear", qwen2[] = "qwen2", qwen3[] = "qwen3";

int main(void)
{
    const struct CMUnitTest tests[] = {
        { "gpt2 f32", f32, NULL, NULL, gpt2 },
        { "llama f32", f32, NULL, NULL, llama },
        { "llama-tied f32", f32, NULL, NULL, tied },
        { "llama3 f32", f32, NULL, NULL, llama3 },
        { "linear f32", f32, NULL, NULL, stretched },
        { "qwen2 f32", f32, NULL, NULL, qwen2 },
        { "qwen3 f32", f32, NULL, NULL, qwen3 },
        { "gpt2 bf16", bf16_storage, NULL, NULL, gpt2 },
        { "llama bf16", bf16_storage, NULL, NULL, llama },
        { "llama-tied bf16", bf16_storage, NULL, NULL, tied },
        { "qwen2 bf16", bf16_storage, NULL, NULL, qwen2 },
        { "qwen3 bf16", bf16_storage, NULL, NULL, qwen3 },
    };
    return cmocka_run_group_tests_name("golden layers", tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The check of layers by finite differences: it passes the families, and catches each mistake that a layer
 * can make, naming layer and parameter. Also layers with no sequence at all.
 */
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

#include <sherd/model.h>
#include "base/mem.h"
#include "model/model.h"

static const struct sherd_model_config configs[] = {
    { .family = "gpt2", .vocab = 31, .width = 12, .layers = 1, .heads = 3, .context = 8, .tied = 1 },
    { .family = "gpt2", .vocab = 31, .width = 12, .layers = 1, .heads = 2, .context = 8 },
    { .family = "llama",
        .vocab = 31,
        .width = 12,
        .layers = 1,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 6,
        .mlp_width = 20,
        .context = 8,
        .tied = 1 },
    { .family = "llama", .vocab = 31, .width = 16, .layers = 1, .heads = 4, .kv_heads = 1, .mlp_width = 20 },
};

static int open_cpu(void **state)
{
    struct sherd_device *dev = NULL;
    int st = sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 });
    *state = dev;
    return st;
}

static int close_cpu(void **state)
{
    sherd_device_close(*state);
    return 0;
}

static void families_pass(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct sherd_model *model = NULL;
        ASSERT_OK(sherd_model_build(&model, &configs[i]));
        ASSERT_OK(sherd_model_check(model, *state, 2, 7, 1));
        ASSERT_OK(sherd_model_check(model, *state, 1, 1, 2));
        sherd_model_destroy(model);
    }
    struct sherd_device_counters counters;
    sherd_device_read(*state, &counters);
    assert_int_equal(counters.bytes, 0);
}

static void frozen_parameters_pass(void **state)
{
    struct sherd_model *model = NULL;
    ASSERT_OK(sherd_model_build(&model, &configs[0]));
    ASSERT_OK(model_freeze(model, "*wte.weight"));
    ASSERT_OK(model_freeze(model, "*.c_attn.*"));
    ASSERT_OK(model_freeze(model, "*ln_2.weight"));
    ASSERT_OK(sherd_model_check(model, *state, 2, 5, 3));
    sherd_model_destroy(model);
}

static void bad_sizes(void **state)
{
    struct sherd_model *model = NULL;
    ASSERT_OK(sherd_model_build(&model, &configs[0]));
    ASSERT_FAILS(sherd_model_check(model, NULL, 1, 5, 3), SHERD_EINVAL, "the device is NULL");
    ASSERT_FAILS(sherd_model_check(model, *state, 0, 5, 3), SHERD_EINVAL, "batch is 0");
    ASSERT_FAILS(sherd_model_check(model, *state, 1, 9, 3), SHERD_ECONFIG, "context of 8");
    sherd_model_destroy(model);
}

/* ---- a block with a mistake ----
 * Forward and backward of GPT-2's block, with one thing done wrong. The CPU's memory is the host's and its
 * compute queue works at once, so that buffers can be spoiled in place. */

enum mistake {
    WRONG_GRADIENT, /* c_fc.weight off by three percent */
    NO_GRADIENT,    /* c_fc.bias forgotten */
    WRONG_DX,
    OVERWRITES_DW,
    ADDS_TO_DX,
    UNSET_Y,
    EVAL_DIFFERS,
    PAST_SCRATCH,
    PAST_SAVED,
    PAST_Y,
    PAST_DW,
    FAILS,
    NO_STATUS,
    SAYS_NOTHING,
    MISTAKES
};
enum { FC_W = 8, FC_B = 9, WIDTH = 12, FC_ELEMS = WIDTH * 4 * WIDTH };

static enum mistake mistake;
static const struct sherd_layer_ops *right;

static int wrong_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    return right->sizes(arg, plan, out);
}

static int right_sizes(const struct sherd_run *run, struct sherd_layer_sizes *out)
{
    struct sherd_layer_plan plan = { .in = run->in, .type = run->type, .recompute = run->recompute };
    return right->sizes(run->arg, &plan, out);
}

static int wrong_forward(struct sherd_run *run)
{
    struct sherd_layer_sizes sizes;
    SHERD_TRY(right_sizes(run, &sizes));
    SHERD_TRY(right->forward(run));
    if (mistake == UNSET_Y)
        ((float *)run->y)[3] = NAN;
    if (mistake == EVAL_DIFFERS && run->mode == SHERD_EVAL)
        ((float *)run->y)[3] += 1.0f;
    if (mistake == PAST_Y)
        ((float *)run->y)[run->in.batch * run->in.seq * WIDTH] = 1.0f;
    if (mistake == FAILS)
        return sherd_fail(SHERD_EINVAL, "a reason");
    if (mistake == SAYS_NOTHING)
        return SHERD_EUNSUPPORTED;
    if (mistake == NO_STATUS)
        return 7;
    if (mistake == PAST_SAVED)
        ((char *)run->saved)[sizes.saved_bytes] = 1;
    return SHERD_OK;
}

static int wrong_backward(struct sherd_run *run)
{
    struct sherd_layer_sizes sizes;
    float dw_before[FC_ELEMS], dx_before[64 * WIDTH];
    void *dw[12];
    float *dx = run->dx;
    int64_t x_elems = run->in.batch * run->in.seq * WIDTH;
    assert_true(x_elems <= 64 * WIDTH);
    memcpy(dw, run->dw, sizeof(dw));
    memcpy(dw_before, dw[FC_W], sizeof(dw_before));
    memcpy(dx_before, dx, (size_t)x_elems * sizeof(float));
    if (mistake == NO_GRADIENT)
        dw[FC_B] = NULL;
    if (mistake == OVERWRITES_DW)
        memset(dw[FC_W], 0, sizeof(dw_before));
    struct sherd_run with = *run;
    with.dw = dw;
    SHERD_TRY(right_sizes(run, &sizes));
    SHERD_TRY(right->backward(&with));
    float *fc = run->dw[FC_W];
    for (int i = 0; i < FC_ELEMS && mistake == WRONG_GRADIENT; i++)
        fc[i] = dw_before[i] + 1.03f * (fc[i] - dw_before[i]);
    for (int64_t i = 0; i < x_elems && mistake == WRONG_DX; i++)
        dx[i] *= 1.03f;
    for (int64_t i = 0; i < x_elems && mistake == ADDS_TO_DX; i++)
        dx[i] += isnan(dx_before[i]) ? 0 : dx_before[i];
    if (mistake == PAST_DW)
        fc[FC_ELEMS] = 1.0f;
    if (mistake == PAST_SCRATCH)
        ((char *)run->scratch)[sizes.scratch_bytes + 200] = 1;
    return SHERD_OK;
}

static const struct sherd_layer_ops wrong_ops = {
    .kind = "wrong", .sizes = wrong_sizes, .forward = wrong_forward, .backward = wrong_backward
};

static void mistakes_are_named(void **state)
{
    static const char *const want[MISTAKES] = {
        [WRONG_GRADIENT] = "layer 'block0': the gradient of 'transformer.h.0.mlp.c_fc.weight' is wrong",
        [NO_GRADIENT] = "layer 'block0': the gradient of 'transformer.h.0.mlp.c_fc.bias' is wrong",
        [WRONG_DX] = "layer 'block0': the gradient of 'x' is wrong",
        [OVERWRITES_DW] =
            "layer 'block0': backward must add to the gradient of 'transformer.h.0.mlp.c_fc.weight'",
        [ADDS_TO_DX] = "layer 'block0': backward must overwrite the gradient of 'x'",
        [UNSET_Y] = "layer 'block0': y has values that are unset",
        [EVAL_DIFFERS] = "layer 'block0': a weighted sum of y differs between TRAIN",
        [PAST_SCRATCH] = "layer 'block0': writes past the",
        [PAST_SAVED] = "layer 'block0': writes past the",
        [PAST_Y] = "bytes of y",
        [PAST_DW] = "bytes of the gradient of transformer.h.0.mlp.c_fc.weight",
        [FAILS] = "forward of layer block0: a reason",
        [NO_STATUS] = "forward of layer block0 returned 7, which is no status",
        [SAYS_NOTHING] = "forward of layer block0: not supported here, and no reason was given",
    };
    struct sherd_model *model = NULL, *wrong = NULL;
    struct sherd_layer layers[3];
    ASSERT_OK(sherd_model_build(&model, &configs[0]));
    struct sherd_model_spec spec = *sherd_model_spec_of(model);
    assert_int_equal(spec.n_layers, 3);
    memcpy(layers, spec.layers, sizeof(layers));
    right = layers[1].ops;
    layers[1].ops = &wrong_ops;
    spec.layers = layers;
    ASSERT_OK(sherd_model_create(&wrong, &spec));
    for (mistake = 0; mistake < MISTAKES; mistake++)
        ASSERT_FAILS(sherd_model_check(wrong, *state, 2, 7, 4),
            mistake == SAYS_NOTHING ? SHERD_EUNSUPPORTED : SHERD_EINVAL, want[mistake]);
    ASSERT_OK(sherd_model_check(wrong, *state, 2, 7, 4));
    sherd_model_destroy(wrong);
    sherd_model_destroy(model);
}

static int adding_backward(struct sherd_run *run)
{
    struct sherd_run with = *run;
    with.fresh = NULL;
    memset(run->fresh, 0, 12);
    return right->backward(&with);
}

static void fresh_gradients_must_be_written(void **state)
{
    static const struct sherd_layer_ops adding_ops = { "adding", wrong_sizes, wrong_forward, adding_backward,
        1 };
    struct sherd_model *model = NULL, *wrong = NULL;
    struct sherd_layer layers[3];
    mistake = MISTAKES;
    ASSERT_OK(sherd_model_build(&model, &configs[0]));
    struct sherd_model_spec spec = *sherd_model_spec_of(model);
    memcpy(layers, spec.layers, sizeof(layers));
    right = layers[1].ops;
    layers[1].ops = &adding_ops;
    spec.layers = layers;
    ASSERT_OK(sherd_model_create(&wrong, &spec));
    ASSERT_FAILS(sherd_model_check(wrong, *state, 2, 7, 4), SHERD_EINVAL, "clears the fresh flag of");
    sherd_model_destroy(wrong);
    sherd_model_destroy(model);
}

/* ---- nothing to do ---- */

static void no_sequences(void **state)
{
    struct sherd_queue *queue = NULL;
    ASSERT_OK(sherd_queue_create(&queue, *state, SHERD_QUEUE_COMPUTE));
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct sherd_model *model = NULL;
        ASSERT_OK(sherd_model_build(&model, &configs[i]));
        const struct sherd_model_spec *spec = sherd_model_spec_of(model);
        const void *w[16] = { NULL };
        void *dw[16] = { NULL };
        double sum = 0.5;
        for (int l = 0; l < spec->n_layers; l++) {
            const struct sherd_layer *layer = &spec->layers[l];
            struct sherd_layer_sizes sizes;
            struct sherd_run run = { .queue = queue,
                .arg = layer->arg,
                .in = { 0, 8, l ? 12 : 0 },
                .type = SHERD_F32,
                .grad_type = SHERD_F32,
                .w = w,
                .dw = dw,
                .loss_sum = &sum };
            struct sherd_layer_plan plan = { .in = run.in, .type = run.type };
            ASSERT_OK(layer->ops->sizes(layer->arg, &plan, &sizes));
            for (run.mode = SHERD_TRAIN; run.mode <= SHERD_EVAL; run.mode++) {
                ASSERT_OK(layer->ops->forward(&run));
                ASSERT_OK(layer->ops->backward(&run));
            }
        }
        ASSERT_OK(sherd_queue_sync(queue));
        assert_true(sum == 0.5);
        sherd_model_destroy(model);
    }
    sherd_queue_destroy(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_pass),
        cmocka_unit_test(frozen_parameters_pass),
        cmocka_unit_test(bad_sizes),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(fresh_gradients_must_be_written),
        cmocka_unit_test(no_sequences),
    };
    return cmocka_run_group_tests_name("model_check", tests, open_cpu, close_cpu);
}

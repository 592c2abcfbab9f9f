/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What operations refuse: each row is arguments that are right, and then one of them made wrong.
 */
#include "tests/ops/checkop.h"

#include <math.h>

static struct sherd_device *dev;
static struct sherd_queue *queue;
static float memory[256];

static int setup(void **state)
{
    (void)state;
    dev = op_device(1, 0);
    return sherd_queue_create(&queue, dev, SHERD_QUEUE_COMPUTE);
}

static int teardown(void **state)
{
    (void)state;
    sherd_queue_destroy(queue);
    sherd_device_close(dev);
    return 0;
}

#define P memory
#define Q (memory + 128)

/* The arguments with `field` set to `value` fail with a text that names operation and field. */
#define REFUSES(op, args, field, value, status)                                                              \
    do {                                                                                                     \
        struct sherd_##op wrong_ = args;                                                                     \
        wrong_.field = value;                                                                                \
        ASSERT_FAILS(sherd_##op(queue, &wrong_), status, #op ": " #field);                                   \
    } while (0)

static void moving(void **state)
{
    const struct sherd_copy copy = { .dst = P, .src = Q, .bytes = 4 };
    const struct sherd_fill fill = { .dst = P, .bytes = 4 };
    const struct sherd_cast cast = { .y = P, .x = Q, .n = 1, .y_type = SHERD_F32, .x_type = SHERD_F32 };
    const struct sherd_add add = { .y = P, .a = Q, .b = Q, .n = 1, .type = SHERD_F32 };
    const struct sherd_accumulate accumulate = { .dst = P, .src = Q, .n = 1, .src_type = SHERD_F32 };
    (void)state;
    REFUSES(copy, copy, dst, NULL, SHERD_EINVAL);
    REFUSES(copy, copy, src, NULL, SHERD_EINVAL);
    REFUSES(copy, copy, rows, -1, SHERD_EINVAL);
    struct sherd_copy pieces = copy;
    pieces.rows = 2;
    REFUSES(copy, pieces, pitch, 3, SHERD_EINVAL);
    REFUSES(fill, fill, dst, NULL, SHERD_EINVAL);
    REFUSES(cast, cast, n, -1, SHERD_EINVAL);
    REFUSES(cast, cast, x, NULL, SHERD_EINVAL);
    REFUSES(cast, cast, y_type, SHERD_I32, SHERD_EUNSUPPORTED);
    REFUSES(cast, cast, x_type, SHERD_DTYPE_NONE, SHERD_EINVAL);
    REFUSES(add, add, b, NULL, SHERD_EINVAL);
    REFUSES(add, add, type, SHERD_F64, SHERD_EUNSUPPORTED);
    REFUSES(accumulate, accumulate, dst, NULL, SHERD_EINVAL);
    REFUSES(accumulate, accumulate, n, INT64_MAX, SHERD_EINVAL);
}

static void matmul(void **state)
{
    const struct sherd_matmul a = {
        .c = P, .a = Q, .b = Q, .m = 1, .n = 1, .k = 1, .type = SHERD_F32, .c_type = SHERD_F32
    };
    (void)state;
    REFUSES(matmul, a, m, -1, SHERD_EINVAL);
    REFUSES(matmul, a, n, INT64_C(1) << 32, SHERD_EINVAL);
    REFUSES(matmul, a, k, 0, SHERD_EINVAL);
    REFUSES(matmul, a, a, NULL, SHERD_EINVAL);
    REFUSES(matmul, a, b, NULL, SHERD_EINVAL);
    REFUSES(matmul, a, c, NULL, SHERD_EINVAL);
    REFUSES(matmul, a, c, Q, SHERD_EINVAL);
    REFUSES(matmul, a, type, SHERD_F64, SHERD_EUNSUPPORTED);
    REFUSES(matmul, a, c_type, (enum sherd_dtype)99, SHERD_EINVAL);
    ASSERT_FAILS(sherd_matmul(NULL, &a), SHERD_EINVAL, "matmul: the queue is NULL");
    ASSERT_FAILS(sherd_matmul(queue, NULL), SHERD_EINVAL, "matmul: the argument is NULL");
}

static void layers(void **state)
{
    const struct sherd_bias_backward bias = {
        .db = P, .dy = Q, .rows = 1, .cols = 1, .type = SHERD_F32, .grad_type = SHERD_F32, .scratch = Q
    };
    const struct sherd_norm_forward norm = {
        .y = P, .mean = P, .rstd = P, .x = Q, .w = Q, .rows = 1, .cols = 1, .eps = 1e-5f, .type = SHERD_F32
    };
    const struct sherd_norm_backward dnorm = { .dx = P,
        .dw = P,
        .dy = Q,
        .x = Q,
        .w = Q,
        .mean = Q,
        .rstd = Q,
        .rows = 1,
        .cols = 1,
        .type = SHERD_F32,
        .grad_type = SHERD_F32,
        .scratch = Q };
    const struct sherd_gelu_forward gelu = { .y = P, .x = Q, .n = 1, .type = SHERD_F32 };
    const struct sherd_gelu_backward dgelu = { .dx = P, .dy = Q, .x = Q, .n = 1, .type = SHERD_F32 };
    const struct sherd_swiglu_forward swiglu = { .y = P, .x = Q, .rows = 1, .cols = 1, .type = SHERD_F32 };
    const struct sherd_swiglu_backward dswiglu = {
        .dx = P, .dy = Q, .x = Q, .rows = 1, .cols = 1, .type = SHERD_F32
    };
    (void)state;
    REFUSES(bias_backward, bias, scratch, NULL, SHERD_EINVAL);
    REFUSES(bias_backward, bias, grad_type, SHERD_I64, SHERD_EUNSUPPORTED);
    REFUSES(norm_forward, norm, kind, (enum sherd_norm_kind)2, SHERD_EINVAL);
    REFUSES(norm_forward, norm, eps, -1.0f, SHERD_EINVAL);
    REFUSES(norm_forward, norm, eps, NAN, SHERD_EINVAL);
    REFUSES(norm_forward, norm, mean, NULL, SHERD_EINVAL);
    REFUSES(norm_forward, norm, run, 2, SHERD_EINVAL); /* rows is 1 */
    struct sherd_norm_backward runs = dnorm;
    runs.rows = runs.run = 3;
    REFUSES(norm_backward, runs, pitch, 2, SHERD_EINVAL);
    REFUSES(norm_backward, dnorm, mean, NULL, SHERD_EINVAL);
    REFUSES(norm_backward, dnorm, scratch, NULL, SHERD_EINVAL);
    REFUSES(norm_backward, dnorm, rows, -3, SHERD_EINVAL);
    REFUSES(norm_backward, dnorm, y, P, SHERD_EINVAL);     /* is dx */
    REFUSES(gelu_backward, dgelu, y, P, SHERD_EINVAL);     /* is dx */
    REFUSES(swiglu_backward, dswiglu, y, Q, SHERD_EINVAL); /* is x */
    REFUSES(gelu_forward, gelu, x, NULL, SHERD_EINVAL);
    REFUSES(gelu_backward, dgelu, dy, NULL, SHERD_EINVAL);
    REFUSES(swiglu_forward, swiglu, cols, -1, SHERD_EINVAL);
    REFUSES(swiglu_backward, dswiglu, dx, NULL, SHERD_EINVAL);
}

static void attention(void **state)
{
    const struct sherd_rope rope = {
        .x = P, .batch = 1, .seq = 1, .heads = 2, .rotated = 2, .head_dim = 4, .type = SHERD_F32
    };
    const struct sherd_attention_forward a = { .out = P,
        .lse = P,
        .qkv = Q,
        .batch = 1,
        .seq = 1,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 4,
        .scale = 1,
        .type = SHERD_F32 };
    const struct sherd_attention_backward b = { .dqkv = P,
        .dout = Q,
        .out = Q,
        .qkv = Q,
        .lse = Q,
        .batch = 1,
        .seq = 1,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 4,
        .scale = 1,
        .type = SHERD_F32,
        .scratch = P };
    (void)state;
    REFUSES(rope, rope, head_dim, 3, SHERD_EINVAL);
    REFUSES(rope, rope, head_dim, 258, SHERD_EINVAL);
    REFUSES(rope, rope, rotated, 3, SHERD_EINVAL);
    REFUSES(rope, rope, inv_freq[1], INFINITY, SHERD_EINVAL);
    REFUSES(attention_forward, a, kv_heads, 0, SHERD_EINVAL);
    REFUSES(attention_forward, a, kv_heads, 8, SHERD_EINVAL);
    REFUSES(attention_forward, a, heads, 5, SHERD_EINVAL);
    REFUSES(attention_forward, a, head_dim, 257, SHERD_EINVAL);
    REFUSES(attention_forward, a, scale, NAN, SHERD_EINVAL);
    REFUSES(attention_forward, a, lse, NULL, SHERD_EINVAL);
    REFUSES(attention_backward, b, out, NULL, SHERD_EINVAL);
    REFUSES(attention_backward, b, scratch, NULL, SHERD_EINVAL);
}

static void ends_of_the_model(void **state)
{
    const struct sherd_embed_forward embed = { .y = P,
        .tokens = (const int32_t *)Q,
        .wte = Q,
        .batch = 1,
        .seq = 1,
        .width = 1,
        .vocab = 1,
        .type = SHERD_F32 };
    const struct sherd_embed_backward dembed = { .dwte = P,
        .dy = Q,
        .tokens = (const int32_t *)Q,
        .batch = 1,
        .seq = 1,
        .width = 1,
        .vocab = 1,
        .type = SHERD_F32,
        .grad_type = SHERD_F32,
        .scratch = Q };
    const struct sherd_loss loss = { .logits = P,
        .sum = (double *)Q,
        .count = (double *)Q,
        .targets = (const int32_t *)Q,
        .rows = 1,
        .vocab = 1,
        .backward = 1,
        .type = SHERD_F32,
        .scratch = Q };
    (void)state;
    REFUSES(embed_forward, embed, vocab, 0, SHERD_EINVAL);
    REFUSES(embed_forward, embed, tokens, NULL, SHERD_EINVAL);
    REFUSES(embed_backward, dembed, scratch, NULL, SHERD_EINVAL);
    REFUSES(embed_backward, dembed, width, -1, SHERD_EINVAL);
    REFUSES(loss, loss, vocab, 0, SHERD_EINVAL);
    REFUSES(loss, loss, sum, NULL, SHERD_EINVAL);
    REFUSES(loss, loss, count, NULL, SHERD_EINVAL);
    REFUSES(loss, loss, targets, NULL, SHERD_EINVAL);
}

static void updates(void **state)
{
    const struct sherd_adamw adamw = { .master = P,
        .m = P,
        .v = P,
        .grad = Q,
        .factor = Q,
        .n = 1,
        .step = 1,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .grad_type = SHERD_F32,
        .state_type = SHERD_F32 };
    const struct sherd_sgd sgd = { .master = P,
        .m = P,
        .grad = Q,
        .factor = Q,
        .n = 1,
        .step = 1,
        .momentum = 0.9f,
        .grad_type = SHERD_F32,
        .state_type = SHERD_F32 };
    const struct sherd_square_sum square = {
        .sum = (double *)P, .x = Q, .n = 1, .type = SHERD_F32, .scratch = Q
    };
    const struct sherd_ordered_sum ordered = {
        .out = (double *)P, .in = (double *)Q, .n = 2, .stride = 2, .cols = 2
    };
    const struct sherd_clip_factor clip = { .factor = P, .norm = (double *)P, .square_sum = (double *)Q };
    (void)state;
    REFUSES(adamw, adamw, step, 0, SHERD_EINVAL);
    REFUSES(adamw, adamw, beta1, 1.0f, SHERD_EINVAL);
    REFUSES(adamw, adamw, beta2, -0.1f, SHERD_EINVAL);
    REFUSES(adamw, adamw, lr, NAN, SHERD_EINVAL);
    REFUSES(adamw, adamw, factor, NULL, SHERD_EINVAL);
    REFUSES(adamw, adamw, state_type, SHERD_I32, SHERD_EUNSUPPORTED);
    REFUSES(adamw, adamw, state_type, SHERD_F16, SHERD_EUNSUPPORTED);
    REFUSES(adamw, adamw, low, (int16_t *)(void *)Q, SHERD_EINVAL); /* and a master */
    REFUSES(adamw, adamw, master, NULL, SHERD_EINVAL);
    REFUSES(sgd, sgd, low, (int16_t *)(void *)Q, SHERD_EINVAL);
    struct sherd_sgd random = sgd;
    random.state_type = SHERD_BF16;
    REFUSES(sgd, random, first, -1, SHERD_EINVAL);
    REFUSES(sgd, random, first, INT64_C(1) << 34, SHERD_EINVAL);
    REFUSES(sgd, random, step, INT64_C(1) << 32, SHERD_EINVAL);
    REFUSES(sgd, sgd, m, NULL, SHERD_EINVAL);
    REFUSES(sgd, sgd, weight_decay, INFINITY, SHERD_EINVAL);
    REFUSES(square_sum, square, sum, NULL, SHERD_EINVAL);
    REFUSES(square_sum, square, scratch, NULL, SHERD_EINVAL);
    REFUSES(ordered_sum, ordered, cols, 3, SHERD_EINVAL);
    REFUSES(clip_factor, clip, norm, NULL, SHERD_EINVAL);
    REFUSES(clip_factor, clip, max_norm, NAN, SHERD_EINVAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(moving, setup, teardown),
        cmocka_unit_test_setup_teardown(matmul, setup, teardown),
        cmocka_unit_test_setup_teardown(layers, setup, teardown),
        cmocka_unit_test_setup_teardown(attention, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_of_the_model, setup, teardown),
        cmocka_unit_test_setup_teardown(updates, setup, teardown),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}

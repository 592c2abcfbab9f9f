/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Embeddings: rows of the tables, their gradients with repeated tokens, and tokens outside the vocabulary.
 */
#include "tests/ops/checkop.h"

struct shape {
    int64_t batch, seq, width, vocab;
    enum sherd_dtype type, grad_type;
    int wpe, which; /* which gradients: 1 dwte, 2 dwpe, 3 both */
};

static struct sherd_embed_backward gradient(const struct shape *s)
{
    return (struct sherd_embed_backward){ .batch = s->batch,
        .seq = s->seq,
        .width = s->width,
        .vocab = s->vocab,
        .type = s->type,
        .grad_type = s->grad_type };
}

static void embed_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t rows = s->batch * s->seq, c = s->width, pos = s->seq + 2;
    struct op_buf *tokens = op_integers(t, rows, s->vocab), *wte = op_random(t, s->vocab * c, s->type, 1, 0);
    struct op_buf *wpe = op_random(t, pos * c, s->type, 1, 0), *dy = op_random(t, rows * c, s->type, 1, 0);
    struct op_buf *y = op_output(t, rows * c, s->type);
    struct op_buf *dwte = op_inout(op_random(t, s->vocab * c, s->grad_type, 1, 0));
    struct op_buf *dwpe = op_inout(op_random(t, pos * c, s->grad_type, 1, 0));
    double *want = op_doubles(t, rows * c), *dt = op_doubles(t, s->vocab * c), *dp = op_doubles(t, pos * c);
    memcpy(dt, dwte->host, (size_t)dwte->n * sizeof(*dt));
    memcpy(dp, dwpe->host, (size_t)dwpe->n * sizeof(*dp));
    OP_RUN(t, sherd_embed_forward(t->queue, &(struct sherd_embed_forward){ .y = y->dev,
                                                .tokens = tokens->dev,
                                                .wte = wte->dev,
                                                .wpe = s->wpe ? wpe->dev : NULL,
                                                .batch = s->batch,
                                                .seq = s->seq,
                                                .width = c,
                                                .vocab = s->vocab,
                                                .type = s->type }));
    struct sherd_embed_backward a = gradient(s);
    a.dwte = s->which & 1 ? dwte->dev : NULL;
    a.dwpe = s->which & 2 ? dwpe->dev : NULL;
    a.dy = dy->dev;
    a.tokens = tokens->dev;
    a.scratch = op_scratch(t, sherd_embed_backward_scratch(&a));
    OP_RUN(t, sherd_embed_backward(t->queue, &a));
    if (t->repeat)
        return;
    for (int64_t i = 0; i < rows * c; i++) {
        int64_t token = (int64_t)tokens->host[i / c] * c + i % c, place = i / c % s->seq * c + i % c;
        want[i] = wte->host[token] + (s->wpe ? wpe->host[place] : 0);
        dt[token] += s->which & 1 ? dy->host[i] : 0;
        dp[place] += s->which & 2 ? dy->host[i] : 0;
    }
    op_expect(t, "y", y, want, s->wpe || s->type == SHERD_F32 ? OP_BOUND(s->type) : 0);
    op_expect(t, "dwte", dwte, dt, OP_BOUND(s->grad_type));
    op_expect(t, "dwpe", dwpe, dp, OP_BOUND(s->grad_type));
}

static void rows_and_gradients(void **state)
{
    static const int64_t sizes[][4] = { { 1, 1, 1, 1 }, { 2, 3, 7, 3 }, { 1, 24, 101, 257 },
        { 3, 101, 24, 5 }, { 2, 7, 600, 128 }, { 1, 300, 65, 1000 }, { 2, 1200, 24, 2 }, { 1, 1400, 65, 1 },
        { 1, 5000, 8, 2 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(
                embed_case, &(struct shape){ sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                                op_types[v % OP_TYPES], op_types[v / OP_TYPES], v % 4 != 0, v % 4 % 3 + 1 });
}

struct fault {
    int32_t token;
    const char *text;
};

static void outside_case(struct op_test *t, const void *arg)
{
    const struct fault *fault = arg;
    double values[] = { 0, 1, 2, 3, 4, (double)fault->token, 0, 1 };
    struct op_buf *tokens = op_input(t, values, 8, SHERD_I32), *wte = op_random(t, 10 * 4, SHERD_F32, 1, 0);
    struct op_buf *y = op_output(t, 8 * 4, SHERD_F32);
    y->output = 0;
    struct sherd_embed_forward a = { .y = y->dev,
        .tokens = tokens->dev,
        .wte = wte->dev,
        .batch = 2,
        .seq = 4,
        .width = 4,
        .vocab = 10,
        .type = SHERD_F32 };
    ASSERT_OK(sherd_embed_forward(t->queue, &a));
    ASSERT_FAILS(sherd_queue_sync(t->queue), SHERD_EINVAL, fault->text);
    ASSERT_OK(sherd_queue_sync(t->queue)); /* reported once */
    a.seq = 2;
    OP_RUN(t, sherd_embed_forward(t->queue, &a)); /* and the queue works again */
    assert_true(op_read(t, y)[0] == wte->host[0]);
}

static void token_outside_fails_at_sync(void **state)
{
    (void)state;
    op_run(outside_case,
        &(struct fault){ 10, "token 10 at sequence 1, position 1 is outside the vocabulary of 10" });
    op_run(outside_case, &(struct fault){ -1, "token -1 at sequence 1, position 1" });
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_gradients),
        cmocka_unit_test(token_outside_fails_at_sync),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Copying, filling, converting, adding, and sums over rows.
 */
#include "tests/ops/checkop.h"

struct shape {
    int64_t n, rows;
    enum sherd_dtype type, other;
    int variant;
};

static const int64_t lengths[] = { 0, 1, 3, 7, 24, 101, 128, 257, 513, CHECK_MANY(100003, 66003) };

/* Runs a case for every length, pair of types and variant. */
static void lengths_and_types(op_case fn, int variants)
{
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES * variants; v++)
            op_run(fn, &(struct shape){ lengths[i], 1, op_types[v % OP_TYPES],
                           op_types[v / OP_TYPES % OP_TYPES], v / (OP_TYPES * OP_TYPES) });
}

static void copy_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *x = op_random(t, s->n, s->type, 1, 0), *y = op_output(t, s->n, s->type);
    struct op_buf *z = op_output(t, s->n, SHERD_I32);
    double *want = op_doubles(t, s->n);
    OP_RUN(t, sherd_copy(t->queue,
                  &(struct sherd_copy){
                      .dst = y->dev, .src = x->dev, .bytes = (size_t)s->n * sherd_dtype_bytes(s->type) }));
    OP_RUN(
        t, sherd_fill(t->queue, &(struct sherd_fill){ .dst = z->dev, .bytes = (size_t)s->n * 4, .byte = 1 }));
    for (int64_t i = 0; i < s->n; i++)
        want[i] = 0x01010101;
    op_expect(t, "copied", y, x->host, 0);
    op_expect(t, "filled", z, want, 0);
}

/* Pieces of a wider matrix; what is between them stays. */
static void pieces_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t pitch = s->n + s->variant, n = (s->rows - 1) * pitch + s->n;
    struct op_buf *x = op_random(t, n, s->type, 1, 0), *y = op_inout(op_random(t, n, s->type, 1, 0));
    size_t elem = sherd_dtype_bytes(s->type);
    double *want = op_doubles(t, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = i % pitch < s->n ? x->host[i] : y->host[i];
    OP_RUN(t, sherd_copy(t->queue, &(struct sherd_copy){ .dst = y->dev,
                                       .src = x->dev,
                                       .bytes = (size_t)s->n * elem,
                                       .rows = s->rows,
                                       .pitch = (size_t)pitch * elem }));
    if (!t->repeat)
        op_expect(t, "y", y, want, 0);
}

static void copy_in_pieces(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = { { 1, 1, 0 }, { 3, 1, 5 }, { 1, 70, 2 }, { 24, 7, 0 },
        { 129, 300, 11 }, { 100003, 3, 1 } };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < OP_TYPES; v++)
            op_run(pieces_case,
                &(struct shape){ sizes[i][0], sizes[i][1], op_types[v], op_types[v], (int)sizes[i][2] });
}

static void copy_and_fill(void **state)
{
    (void)state;
    lengths_and_types(copy_case, 1);
}

static void cast_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *x = op_random(t, s->n, s->type, 1, 0), *y = op_output(t, s->n, s->other);
    double *want = op_doubles(t, s->n);
    OP_RUN(t, sherd_cast(t->queue,
                  &(struct sherd_cast){
                      .y = y->dev, .x = x->dev, .n = s->n, .y_type = s->other, .x_type = s->type }));
    for (int64_t i = 0; i < s->n; i++)
        want[i] = op_round(x->host[i], s->other);
    op_expect(t, "y", y, want, 0);
}

static void casts_round_to_nearest_even(void **state)
{
    (void)state;
    lengths_and_types(cast_case, 1);
}

/* variant: y is another buffer, a, b */
static void add_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *a = op_random(t, s->n, s->type, 1, 0), *b = op_random(t, s->n, s->type, 1, 0);
    struct op_buf *y = s->variant == 0 ? op_output(t, s->n, s->type) : op_inout(s->variant == 1 ? a : b);
    double *want = op_doubles(t, s->n);
    for (int64_t i = 0; i < s->n; i++)
        want[i] = op_round(a->host[i] + b->host[i], s->type);
    OP_RUN(t, sherd_add(t->queue,
                  &(struct sherd_add){ .y = y->dev, .a = a->dev, .b = b->dev, .n = s->n, .type = s->type }));
    op_expect(t, "y", y, want, 0);
}

static void sums_of_two(void **state)
{
    (void)state;
    lengths_and_types(add_case, 3);
}

static void accumulate_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *src = op_random(t, s->n, s->type, 1, 0);
    struct op_buf *dst =
        s->variant ? op_output(t, s->n, SHERD_F32) : op_inout(op_random(t, s->n, SHERD_F32, 1, 0));
    double *want = op_doubles(t, s->n);
    for (int64_t i = 0; i < s->n; i++)
        want[i] = op_round(src->host[i] + (s->variant ? 0 : dst->host[i]), SHERD_F32);
    OP_RUN(t,
        sherd_accumulate(t->queue,
            &(struct sherd_accumulate){
                .dst = dst->dev, .src = src->dev, .n = s->n, .src_type = s->type, .overwrite = s->variant }));
    op_expect(t, "dst", dst, want, 0);
}

static void accumulation_and_overwriting(void **state)
{
    (void)state;
    lengths_and_types(accumulate_case, 2);
}

static void bias_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *dy = op_random(t, s->rows * s->n, s->type, 1, 0.25);
    struct op_buf *db =
        s->variant ? op_output(t, s->n, s->other) : op_inout(op_random(t, s->n, s->other, 1, 0));
    double *want = op_doubles(t, s->n);
    struct sherd_bias_backward a = { .db = db->dev,
        .dy = dy->dev,
        .rows = s->rows,
        .cols = s->n,
        .type = s->type,
        .grad_type = s->other,
        .overwrite = s->variant };
    a.scratch = op_scratch(t, sherd_bias_backward_scratch(&a));
    if (!a.overwrite)
        memcpy(want, db->host, (size_t)s->n * sizeof(*want));
    for (int64_t i = 0; i < s->rows * s->n; i++)
        want[i % s->n] += dy->host[i];
    OP_RUN(t, sherd_bias_backward(t->queue, &a));
    if (!t->repeat)
        op_expect(t, "db", db, want, OP_BOUND(s->other));
}

static void bias_gradients(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 7, 3 }, { 101, 24 }, { 257, 128 }, { 2500, 7 },
        { 3, 1500 }, { 0, 5 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(bias_case, &(struct shape){ sizes[i][1], sizes[i][0], op_types[v % OP_TYPES],
                                  op_types[v / OP_TYPES], sizes[i][0] && (v + (int)i) % 2 });
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_and_fill),
        cmocka_unit_test(copy_in_pieces),
        cmocka_unit_test(casts_round_to_nearest_even),
        cmocka_unit_test(sums_of_two),
        cmocka_unit_test(accumulation_and_overwriting),
        cmocka_unit_test(bias_gradients),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}

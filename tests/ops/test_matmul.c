/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Matrix products in all four layouts, with bias, addition and accumulation, at odd sizes.
 */
#include "tests/ops/checkop.h"

#include <sherd/ops.h>

enum adds { ADD_NONE, ADD_OTHER, ADD_C };

struct shape {
    int64_t m, n, k;
    int64_t a_gap, c_gap; /* elements between rows */
    int trans_a, trans_b, bias;
    enum adds add;
    enum sherd_dtype type, c_type;
};

static int64_t a_pitch(const struct shape *s)
{
    return (s->trans_a ? s->m : s->k) + s->a_gap;
}

static double element(const struct shape *s, const double *a, const double *b, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t l = 0; l < s->k; l++)
        sum += a[s->trans_a ? l * a_pitch(s) + i : i * a_pitch(s) + l] *
               b[s->trans_b ? j * s->k + l : l * s->n + j];
    return sum;
}

static void matmul_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t pitch = s->n + s->c_gap, elems = s->m * pitch;
    struct op_buf *a = op_random(t, (s->trans_a ? s->k : s->m) * a_pitch(s), s->type, 1, 0),
                  *b = op_random(t, s->k * s->n, s->type, 1, 0);
    struct op_buf *bias = s->bias ? op_random(t, s->n, s->type, 3, 0) : NULL;
    struct op_buf *add = s->add ? op_random(t, elems, s->c_type, 3, 0) : NULL;
    /* between rows of c nothing may change: there it begins as what is to be expected */
    struct op_buf *c = s->add == ADD_C ? op_inout(add)
                       : s->c_gap      ? op_inout(op_random(t, elems, s->c_type, 3, 0))
                                       : op_output(t, elems, s->c_type);
    double *want = op_doubles(t, elems);
    for (int64_t i = 0; !t->repeat && s->c_gap && i < elems; i++)
        want[i] = c->host[i];
    for (int64_t i = 0; !t->repeat && i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++)
            want[i * pitch + j] = element(s, a->host, b->host, i, j) + (bias ? bias->host[j] : 0) +
                                  (add ? add->host[i * pitch + j] : 0);
    OP_RUN(t, sherd_matmul(t->queue, &(struct sherd_matmul){ .c = c->dev,
                                         .a = a->dev,
                                         .b = b->dev,
                                         .bias = bias ? bias->dev : NULL,
                                         .add = add ? add->dev : NULL,
                                         .m = s->m,
                                         .n = s->n,
                                         .k = s->k,
                                         .a_pitch = s->a_gap ? a_pitch(s) : 0,
                                         .c_pitch = s->c_gap ? pitch : 0,
                                         .trans_a = s->trans_a,
                                         .trans_b = s->trans_b,
                                         .type = s->type,
                                         .c_type = s->c_type }));
    if (!t->repeat)
        op_expect(t, "c", c, want, OP_BOUND(s->c_type));
}

/* Every layout of a shape; extras and types change along. */
static void all_layouts(int64_t m, int64_t n, int64_t k)
{
    static const struct {
        enum sherd_dtype type, c_type;
    } types[] = { { SHERD_F32, SHERD_F32 }, { SHERD_BF16, SHERD_BF16 }, { SHERD_BF16, SHERD_F32 },
        { SHERD_F32, SHERD_BF16 }, { SHERD_F16, SHERD_F16 }, { SHERD_F16, SHERD_F32 } };
    int count = (int)(m + n + k);
    for (int layout = 0; layout < 4; layout++) {
        for (size_t i = 0; i < ARRAY_LEN(types); i++, count++) {
            struct shape s = { m, n, k, 0, 0, layout & 1, layout >> 1, count % 2, (enum adds)(count % 3),
                types[i].type, types[i].c_type };
            op_run(matmul_case, &s);
        }
        count++;
    }
}

static void small_and_odd_sizes(void **state)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 1, 7, 3 }, { 3, 1, 24 }, { 7, 101, 1 }, { 24, 3, 7 },
        { 101, 24, 128 }, { 128, 128, 101 }, { 1, 257, 128 }, { 257, 1, 24 }, { 33, 65, 17 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        all_layouts(sizes[i][0], sizes[i][1], sizes[i][2]);
}

/* More than one tile and more than one panel of k, in every direction. */
static void several_tiles(void **state)
{
    (void)state;
    all_layouts(257, 530, 101);
    all_layouts(530, 257, 24);
    all_layouts(24, 40, 1100);
    all_layouts(1030, 7, 65);
    all_layouts(7, 1030, 65);
}

/* Every extra with every type at one shape. */
static void bias_and_addition(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 3 * OP_TYPES * OP_TYPES; i++) {
        struct shape s = { 37, 70, 19, 0, 0, 0, 1, i % 2, (enum adds)(i / 2 % 3), op_types[i / 6 % OP_TYPES],
            op_types[i / 6 / OP_TYPES] };
        op_run(matmul_case, &s);
    }
}

/* Rows apart, as the logits of a vocabulary of any size have them; with both values of every other choice. */
static void rows_with_a_pitch(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * 2 * 3 * OP_TYPES * OP_TYPES; i++) {
        struct shape s = { 37, 101, 53, i % 3 ? 11 : 0, i % 2 ? 27 : 0, i & 1, i >> 1 & 1, i / 4 % 2,
            (enum adds)(i / 4 % 3), op_types[i / 12 % OP_TYPES], op_types[i / 12 / OP_TYPES] };
        op_run(matmul_case, &s);
    }
}

static void empty_case(struct op_test *t, const void *arg)
{
    (void)arg;
    OP_RUN(t, sherd_matmul(t->queue,
                  &(struct sherd_matmul){ .m = 0, .n = 5, .k = 5, .type = SHERD_F32, .c_type = SHERD_F32 }));
}

static void no_rows_is_no_work(void **state)
{
    (void)state;
    op_run(empty_case, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_and_odd_sizes),
        cmocka_unit_test(several_tiles),
        cmocka_unit_test(bias_and_addition),
        cmocka_unit_test(rows_with_a_pitch),
        cmocka_unit_test(no_rows_is_no_work),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm, forward and backward, with and without bias, frozen weights and residual gradient,
 * and the output once more from backward.
 */
#include "tests/ops/checkop.h"

#include <math.h>

#define EPS 1e-5

struct shape {
    int64_t rows, cols;
    enum sherd_norm_kind kind;
    enum sherd_dtype type, grad_type;
    int bias, add; /* bias: RMSNorm is to leave it alone; add: 0 none, 1 other, 2 is dx */
    int frozen;
    int again; /* y from backward: 0 none, 1 apart, 2 over dy */
    int overwrite;
};

/* Everything in double. */
struct reference {
    const struct shape *s;
    double *x, *w, *b, *dy;
    double *y, *mean, *rstd;
};

static void forward(struct reference *f)
{
    int64_t n = f->s->cols;
    for (int64_t r = 0; r < f->s->rows; r++) {
        const double *x = f->x + r * n;
        double mean = 0, square = 0;
        for (int64_t i = 0; f->s->kind == SHERD_LAYER_NORM && i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            square += (x[i] - mean) * (x[i] - mean) / (double)n;
        f->mean[r] = mean;
        f->rstd[r] = 1 / sqrt(square + (double)(float)EPS);
        for (int64_t i = 0; i < n; i++)
            f->y[r * n + i] = (x[i] - mean) * f->rstd[r] * f->w[i] + (f->b ? f->b[i] : 0);
    }
}

static double objective(void *ctx)
{
    struct reference *f = ctx;
    forward(f);
    return op_dot(f->y, f->dy, f->s->rows * f->s->cols);
}

static void backward(const struct reference *f, double *dx, double *dw, double *db)
{
    int64_t n = f->s->cols;
    for (int64_t r = 0; r < f->s->rows; r++) {
        double sum = 0, dot = 0;
        for (int64_t i = 0; i < n; i++) {
            double dy = f->dy[r * n + i], hat = (f->x[r * n + i] - f->mean[r]) * f->rstd[r];
            sum += dy * f->w[i] / (double)n;
            dot += dy * f->w[i] * hat / (double)n;
            dw[i] += dy * hat;
            db[i] += dy;
        }
        for (int64_t i = 0; i < n; i++) {
            double hat = (f->x[r * n + i] - f->mean[r]) * f->rstd[r];
            dx[r * n + i] = f->rstd[r] * (f->dy[r * n + i] * f->w[i] -
                                             (f->s->kind == SHERD_LAYER_NORM ? sum : 0) - hat * dot);
        }
    }
}

struct bufs {
    struct op_buf *x, *w, *b, *dy, *add, *y, *mean, *rstd, *dx, *dw, *db, *again;
};

static void run_forward(struct op_test *t, const struct shape *s, struct bufs *u)
{
    OP_RUN(t, sherd_norm_forward(t->queue, &(struct sherd_norm_forward){ .y = u->y->dev,
                                               .mean = s->kind == SHERD_LAYER_NORM ? u->mean->dev : NULL,
                                               .rstd = u->rstd->dev,
                                               .x = u->x->dev,
                                               .w = u->w->dev,
                                               .b = u->b ? u->b->dev : NULL,
                                               .rows = s->rows,
                                               .cols = s->cols,
                                               .eps = (float)EPS,
                                               .kind = s->kind,
                                               .type = s->type }));
}

static int has_bias(const struct shape *s)
{
    return s->bias && s->kind == SHERD_LAYER_NORM;
}

static void run_backward(struct op_test *t, const struct shape *s, struct bufs *u)
{
    struct sherd_norm_backward a = { .dx = u->dx->dev,
        .dw = s->frozen ? NULL : u->dw->dev,
        .db = s->frozen || !has_bias(s) ? NULL : u->db->dev,
        .y = u->again ? u->again->dev : NULL,
        .dy = u->dy->dev,
        .x = u->x->dev,
        .w = u->w->dev,
        .b = u->b ? u->b->dev : NULL,
        .add = u->add ? u->add->dev : NULL,
        .mean = s->kind == SHERD_LAYER_NORM ? u->mean->dev : NULL,
        .rstd = u->rstd->dev,
        .rows = s->rows,
        .cols = s->cols,
        .kind = s->kind,
        .type = s->type,
        .grad_type = s->grad_type,
        .overwrite_dw = s->overwrite,
        .overwrite_db = s->overwrite };
    a.scratch = s->frozen ? NULL : op_scratch(t, sherd_norm_backward_scratch(&a));
    OP_RUN(t, sherd_norm_backward(t->queue, &a));
}

static void check(
    struct op_test *t, const struct shape *s, struct bufs *u, struct reference *f, double *dw0, double *db0)
{
    int64_t n = s->rows * s->cols;
    double *dx = op_doubles(t, n), *dw = op_doubles(t, s->cols), *db = op_doubles(t, s->cols);
    double *want = op_doubles(t, n), *add = op_doubles(t, n);
    if (u->add)
        memcpy(add, f->y + n, (size_t)n * sizeof(*add)); /* kept behind y by the case */
    forward(f);
    backward(f, dx, dw, db);
    op_expect(t, "y", u->y, f->y, OP_BOUND(s->type));
    if (u->again)
        op_same_bits(t, "y from backward", u->again, u->y);
    op_expect(t, "rstd", u->rstd, f->rstd, 1e-6);
    double square = 0; /* of what dx is the difference of */
    for (int64_t i = 0; i < n; i++) {
        double term = f->rstd[i / s->cols] * f->dy[i] * f->w[i % s->cols];
        square += term * term;
        want[i] = dx[i] + add[i];
    }
    op_expect_of(t, "dx", u->dx, want, sqrt(square), OP_BOUND(s->type));
    op_slope(t, "x", objective, f, f->x, dx, n, 1e-6);
    if (s->frozen)
        return;
    op_slope(t, "w", objective, f, f->w, dw, s->cols, 1e-6);
    for (int64_t i = 0; i < s->cols; i++) {
        dw[i] += s->overwrite ? 0 : dw0[i];
        db[i] += s->overwrite ? 0 : db0[i];
    }
    op_expect(t, "dw", u->dw, dw, OP_BOUND(s->grad_type) + 1e-6);
    if (has_bias(s))
        op_expect(t, "db", u->db, db, OP_BOUND(s->grad_type) + 1e-6);
}

static double *keep(struct op_test *t, const struct op_buf *buf)
{
    double *copy = op_doubles(t, buf->n);
    memcpy(copy, buf->host, (size_t)buf->n * sizeof(*copy));
    return copy;
}

static struct op_buf *gradient(struct op_test *t, const struct shape *s)
{
    return s->overwrite ? op_output(t, s->cols, s->grad_type)
                        : op_inout(op_random(t, s->cols, s->grad_type, 1, 0));
}

static void norm_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->rows * s->cols;
    struct bufs u = { .x = op_random(t, n, s->type, 2, 0.5),
        .w = op_random(t, s->cols, s->type, 0.3, 1),
        .b = s->bias ? op_random(t, s->cols, s->type, 0.3, 0) : NULL,
        .dy = op_random(t, n, s->type, 1, 0),
        .add = s->add ? op_random(t, n, s->type, 1, 0) : NULL,
        .y = op_output(t, n, s->type),
        .mean = op_output(t, s->rows, SHERD_F32),
        .rstd = op_output(t, s->rows, SHERD_F32),
        .dw = gradient(t, s),
        .db = gradient(t, s) };
    struct reference f = { s, u.x->host, u.w->host, has_bias(s) ? u.b->host : NULL, u.dy->host,
        op_doubles(t, 2 * n), op_doubles(t, s->rows), op_doubles(t, s->rows) };
    double *dw = keep(t, u.dw), *db = keep(t, u.db);
    if (u.add)
        memcpy(f.y + n, u.add->host, (size_t)n * sizeof(*f.y));
    if (s->again)
        u.again = s->again == 2 ? op_inout(u.dy) : op_output(t, n, s->type);
    u.dx = s->add == 2 ? op_inout(u.add) : op_output(t, n, s->type);
    run_forward(t, s, &u);
    run_backward(t, s, &u);
    if (!t->repeat)
        check(t, s, &u, &f, dw, db);
}

static void sizes(enum sherd_norm_kind kind)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 3, 7 }, { 7, 24 }, { 101, 128 }, { 24, 257 }, { 300, 65 },
        { 35, 2048 }, { 35, 768 }, { 2, 4096 }, { 2, 4104 }, { 2, 4100 }, { 2100, 3 }, { 9000, 8 },
        { 50, 512 }, { 40, 1000 }, { 20, 3000 }, { 19, 5000 } };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(norm_case, &(struct shape){ sizes[i][0], sizes[i][1], kind, op_types[v % OP_TYPES],
                                  op_types[v / OP_TYPES], v % 4 != 0, v % 4 % 3, v == 4,
                                  (v + v / OP_TYPES) % 3, (v + (int)i) % 2 });
}

static void layer_norm(void **state)
{
    (void)state;
    sizes(SHERD_LAYER_NORM);
}

static void rms_norm(void **state)
{
    (void)state;
    sizes(SHERD_RMS_NORM);
}

/* ---- rows in runs ---- */

struct runs {
    int64_t outer, run, pitch, cols; /* rows = outer * run */
    enum sherd_dtype type, grad_type;
};

/* Between packed rows and the runs of a wider matrix, of which the rest stays as it is. */
static void place_rows(const struct runs *s, double *wide, double *packed, int pack)
{
    for (int64_t r = 0; r < s->outer * s->run; r++) {
        double *a = wide + r / s->run * s->pitch + r % s->run * s->cols, *b = packed + r * s->cols;
        memcpy(pack ? b : a, pack ? a : b, (size_t)s->cols * sizeof(double));
    }
}

/* The same bits as with the rows packed, nothing else written, dx in place of dy; y once more from backward.
 */
static void runs_case(struct op_test *t, const void *arg)
{
    const struct runs *s = arg;
    int64_t rows = s->outer * s->run, n = rows * s->cols, wide = s->outer * s->pitch;
    double *px = op_doubles(t, n), *pdy = op_doubles(t, n);
    struct op_buf *x = op_random(t, wide, s->type, 2, 0.5), *w = op_random(t, s->cols, s->type, 0.3, 1);
    struct op_buf *y = op_inout(op_random(t, wide, s->type, 1, 0));
    struct op_buf *dx = op_inout(op_random(t, wide, s->type, 1, 0));
    struct op_buf *again = op_inout(op_input(t, y->host, wide, s->type)), *bagain = op_output(t, n, s->type);
    double *want_y = keep(t, y), *want_dx = keep(t, dx);
    place_rows(s, x->host, px, 1);
    place_rows(s, dx->host, pdy, 1);
    struct op_buf *bx = op_input(t, px, n, s->type), *bdy = op_input(t, pdy, n, s->type);
    struct op_buf *by = op_output(t, n, s->type), *bdx = op_output(t, n, s->type);
    struct op_buf *rstd = op_output(t, rows, SHERD_F32), *brstd = op_output(t, rows, SHERD_F32);
    double *zero = op_doubles(t, s->cols);
    struct op_buf *dw = op_inout(op_input(t, zero, s->cols, s->grad_type));
    struct op_buf *bdw = op_inout(op_input(t, zero, s->cols, s->grad_type));
    struct sherd_norm_forward f = { .y = by->dev,
        .rstd = brstd->dev,
        .x = bx->dev,
        .w = w->dev,
        .rows = rows,
        .cols = s->cols,
        .eps = (float)EPS,
        .kind = SHERD_RMS_NORM,
        .type = s->type };
    struct sherd_norm_backward b = { .dx = bdx->dev,
        .dw = bdw->dev,
        .y = bagain->dev,
        .dy = bdy->dev,
        .x = bx->dev,
        .w = w->dev,
        .rstd = brstd->dev,
        .rows = rows,
        .cols = s->cols,
        .kind = SHERD_RMS_NORM,
        .type = s->type,
        .grad_type = s->grad_type };
    b.scratch = op_scratch(t, sherd_norm_backward_scratch(&b));
    OP_RUN(t, sherd_norm_forward(t->queue, &f));
    OP_RUN(t, sherd_norm_backward(t->queue, &b));
    f.y = y->dev, f.rstd = rstd->dev, f.x = x->dev;
    b.dx = dx->dev, b.y = again->dev, b.dw = dw->dev, b.dy = dx->dev, b.x = x->dev, b.rstd = rstd->dev;
    f.run = b.run = s->run;
    f.pitch = b.pitch = s->pitch;
    OP_RUN(t, sherd_norm_forward(t->queue, &f));
    OP_RUN(t, sherd_norm_backward(t->queue, &b));
    if (t->repeat)
        return;
    place_rows(s, want_y, op_read(t, by), 0);
    place_rows(s, want_dx, op_read(t, bdx), 0);
    op_expect(t, "y", y, want_y, 0);
    op_same_bits(t, "y from backward", again, y);
    op_same_bits(t, "y from backward, packed", bagain, by);
    op_expect(t, "rstd", rstd, op_read(t, brstd), 0);
    op_expect(t, "dx", dx, want_dx, 0);
    op_expect(t, "dw", dw, op_read(t, bdw), 0);
}

static void rows_in_runs(void **state)
{
    (void)state;
    static const int64_t sizes[][4] = { { 1, 1, 1, 1 }, { 5, 3, 40, 8 }, { 7, 2, 35, 9 },
        { 60, 4, 1024, 128 } };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(runs_case, &(struct runs){ sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                                  op_types[v % OP_TYPES], op_types[v / OP_TYPES] });
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm),
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(rows_in_runs),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}

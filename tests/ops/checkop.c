/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The frame of the operation tests; see checkop.h.
 */
#include "tests/ops/checkop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/rng.h"
#include "base/sum.h"

#define GUARD_BYTES 256
#define GUARD 0xa5
#define UNSET 0xff /* throughout, a NaN of every float type */
#define SEED 20

static const char *device_name = "cpu";

int op_on_cpu(void)
{
    return strcmp(device_name, "cpu") == 0;
}

struct sherd_device *op_device(int threads, int async)
{
    struct sherd_device *dev = NULL;
    struct sherd_device_desc desc = { .name = device_name, .threads = threads, .async = async };
    ASSERT_OK(sherd_device_open(&dev, &desc));
    return dev;
}

double *op_doubles(struct op_test *t, int64_t n)
{
    double *p = arena_zalloc(&t->arena, (size_t)n + 1, sizeof(*p));
    assert_non_null(p);
    return p;
}

double op_dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* ---- elements ---- */

static void put(void *raw, int64_t i, double x, enum sherd_dtype type)
{
    if (type == SHERD_F32)
        ((float *)raw)[i] = (float)x;
    else if (type == SHERD_BF16)
        ((bf16 *)raw)[i] = bf16_from_float((float)x);
    else if (type == SHERD_F16)
        ((f16 *)raw)[i] = f16_from_float((float)x);
    else if (type == SHERD_F64)
        ((double *)raw)[i] = x;
    else if (type == SHERD_I32)
        ((int32_t *)raw)[i] = (int32_t)x;
    else
        fail_msg("checkop: no %s", sherd_dtype_name(type));
}

static double get(const void *raw, int64_t i, enum sherd_dtype type)
{
    if (type == SHERD_F32)
        return (double)((const float *)raw)[i];
    if (type == SHERD_BF16)
        return (double)bf16_to_float(((const bf16 *)raw)[i]);
    if (type == SHERD_F16)
        return (double)f16_to_float(((const f16 *)raw)[i]);
    if (type == SHERD_F64)
        return ((const double *)raw)[i];
    return (double)((const int32_t *)raw)[i];
}

double op_round(double x, enum sherd_dtype type)
{
    double raw = 0;
    put(&raw, 0, x, type);
    return get(&raw, 0, type);
}

/* ---- buffers ---- */

static size_t buf_bytes(const struct op_buf *buf)
{
    return (size_t)buf->n * sherd_dtype_bytes(buf->type);
}

static void copy(struct op_test *t, void *dst, const void *src, size_t bytes)
{
    OP_RUN(t, sherd_copy(t->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes }));
}

static void fill(struct op_test *t, void *dst, size_t bytes, unsigned char byte)
{
    OP_RUN(t, sherd_fill(t->queue, &(struct sherd_fill){ .dst = dst, .bytes = bytes, .byte = byte }));
}

static struct op_buf *make(struct op_test *t, int64_t n, enum sherd_dtype type)
{
    struct op_buf *buf = arena_zalloc(&t->arena, 1, sizeof(*buf));
    assert_non_null(buf);
    ASSERT_OK(mem_grow(&t->bufs, &t->cap_bufs, t->n_bufs + 1, sizeof(*t->bufs)));
    t->bufs[t->n_bufs++] = buf;
    *buf = (struct op_buf){ .host = op_doubles(t, n), .n = n, .type = type };
    size_t bytes = buf_bytes(buf);
    ASSERT_OK(sherd_device_alloc(t->dev, &buf->block, bytes + 2 * GUARD_BYTES));
    buf->dev = n ? (char *)buf->block + GUARD_BYTES : NULL;
    fill(t, buf->block, bytes + 2 * GUARD_BYTES, GUARD);
    return buf;
}

/* host to dev, by way of the type: host is what it becomes. */
static void upload(struct op_test *t, struct op_buf *buf)
{
    void *raw = malloc(buf_bytes(buf) + 1);
    for (int64_t i = 0; i < buf->n; i++) {
        put(raw, i, buf->host[i], buf->type);
        buf->host[i] = get(raw, i, buf->type);
    }
    copy(t, buf->dev, raw, buf_bytes(buf));
    free(raw);
}

struct op_buf *op_input(struct op_test *t, const double *values, int64_t n, enum sherd_dtype type)
{
    struct op_buf *buf = make(t, n, type);
    memcpy(buf->host, values, (size_t)n * sizeof(*values));
    upload(t, buf);
    return buf;
}

struct op_buf *op_random(struct op_test *t, int64_t n, enum sherd_dtype type, double std, double mean)
{
    float *draws = malloc((size_t)n * sizeof(*draws) + 1);
    double *values = op_doubles(t, n);
    rng_normal(draws, n, SEED, t->stream++, 0, (float)std);
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)draws[i] + mean;
    free(draws);
    return op_input(t, values, n, type);
}

struct op_buf *op_integers(struct op_test *t, int64_t n, int64_t below)
{
    float *draws = malloc((size_t)n * sizeof(*draws) + 1);
    double *values = op_doubles(t, n);
    rng_uniform(draws, n, SEED, t->stream++, 0);
    for (int64_t i = 0; i < n; i++)
        values[i] = floor((double)draws[i] * (double)below);
    free(draws);
    return op_input(t, values, n, SHERD_I32);
}

struct op_buf *op_output(struct op_test *t, int64_t n, enum sherd_dtype type)
{
    struct op_buf *buf = make(t, n, type);
    fill(t, buf->dev, buf_bytes(buf), UNSET);
    buf->output = 1;
    return buf;
}

void *op_scratch(struct op_test *t, size_t bytes)
{
    assert_int_equal(bytes % sizeof(double), 0);
    struct op_buf *buf = op_output(t, (int64_t)(bytes / sizeof(double)), SHERD_F64);
    buf->output = 0;
    return buf->dev;
}

struct op_buf *op_inout(struct op_buf *buf)
{
    buf->output = 1;
    return buf;
}

double *op_read(struct op_test *t, struct op_buf *buf)
{
    void *raw = malloc(buf_bytes(buf) + 1);
    copy(t, raw, buf->dev, buf_bytes(buf));
    for (int64_t i = 0; i < buf->n; i++)
        buf->host[i] = get(raw, i, buf->type);
    free(raw);
    return buf->host;
}

/* ---- judging ---- */

void op_expect_of(
    struct op_test *t, const char *name, struct op_buf *buf, const double *want, double size, double bound)
{
    double error = 0, square = 0;
    const double *got = op_read(t, buf);
    for (int64_t i = 0; i < buf->n; i++) {
        if (isnan(got[i]) && !isnan(want[i]))
            fail_msg("%s[%lld] of %lld is NaN or unset, wanted %g", name, (long long)i, (long long)buf->n,
                want[i]);
        error += (got[i] - want[i]) * (got[i] - want[i]);
        square += want[i] * want[i];
    }
    size = fmax(size, sqrt(square));
    if (!(sqrt(error) <= bound * size))
        fail_msg("%s: relative error %.3g, bound %.3g (%lld %s)", name, sqrt(error) / size, bound,
            (long long)buf->n, sherd_dtype_name(buf->type));
}

void op_expect(struct op_test *t, const char *name, struct op_buf *buf, const double *want, double bound)
{
    op_expect_of(t, name, buf, want, 0, bound);
}

void op_same_bits(struct op_test *t, const char *name, const struct op_buf *a, const struct op_buf *b)
{
    size_t bytes = buf_bytes(a), each = sherd_dtype_bytes(a->type);
    assert_true(b->type == a->type && b->n == a->n);
    char *raw = malloc(2 * bytes + 1);
    copy(t, raw, a->dev, bytes);
    copy(t, raw + bytes, b->dev, bytes);
    for (size_t i = 0; i < bytes; i += each)
        if (memcmp(raw + i, raw + bytes + i, each) != 0)
            fail_msg("%s[%zu] of %lld: %.9g here, %.9g there (%s)", name, i / each, (long long)a->n,
                get(raw + i, 0, a->type), get(raw + bytes + i, 0, a->type), sherd_dtype_name(a->type));
    free(raw);
}

#define DIRECTIONS 3

void op_slope(struct op_test *t, const char *name, double (*objective)(void *ctx), void *ctx, double *x,
    const double *grad, int64_t n, double bound)
{
    double *at = op_doubles(t, n), *toward = op_doubles(t, n);
    float *draws = malloc((size_t)n * sizeof(*draws) + 1);
    const double step = 1e-5, usual = sqrt(op_dot(grad, grad, n));
    memcpy(at, x, (size_t)n * sizeof(*at));
    for (int d = 0; d < DIRECTIONS; d++) {
        rng_normal(draws, n, SEED, t->stream++, 0, 1.0f);
        for (int64_t i = 0; i < n; i++)
            toward[i] = (double)draws[i];
        for (int64_t i = 0; i < n; i++)
            x[i] = at[i] + step * toward[i];
        double up = objective(ctx);
        for (int64_t i = 0; i < n; i++)
            x[i] = at[i] - step * toward[i];
        double down = objective(ctx);
        memcpy(x, at, (size_t)n * sizeof(*at));
        double slope = (up - down) / (2 * step), want = op_dot(grad, toward, n);
        if (!(fabs(slope - want) <= bound * usual + 1e-7 * (fabs(up) + fabs(down))))
            fail_msg("%s: the slope is %.9g, the gradient says %.9g", name, slope, want);
    }
    free(draws);
}

/* ---- running ---- */

static void check_guards(struct op_test *t, const struct op_buf *buf)
{
    unsigned char guard[2][GUARD_BYTES];
    size_t bytes = buf_bytes(buf);
    copy(t, guard[0], buf->block, GUARD_BYTES);
    copy(t, guard[1], (const char *)buf->block + GUARD_BYTES + bytes, GUARD_BYTES);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < GUARD_BYTES; i++)
            if (guard[side][i] != GUARD)
                fail_msg("a buffer of %zu bytes was written %s", bytes,
                    side ? "behind its end" : "before its start");
}

static uint64_t hash_bits(struct op_test *t, const struct op_buf *buf, uint64_t hash)
{
    size_t bytes = buf_bytes(buf);
    void *raw = malloc(bytes + 1);
    copy(t, raw, buf->dev, bytes);
    hash = sum_hash64(raw, bytes, hash);
    free(raw);
    return hash;
}

static uint64_t run_once(op_case fn, const void *arg, int threads, int repeat)
{
    struct op_test t = { .dev = op_device(threads, 0), .repeat = repeat };
    uint64_t hash = 0;
    ASSERT_OK(sherd_queue_create(&t.queue, t.dev, SHERD_QUEUE_COMPUTE));
    fn(&t, arg);
    for (int i = 0; i < t.n_bufs; i++) {
        check_guards(&t, t.bufs[i]);
        if (t.bufs[i]->output)
            hash = hash_bits(&t, t.bufs[i], hash);
        sherd_device_free(t.dev, t.bufs[i]->block);
    }
    sherd_queue_destroy(t.queue);
    sherd_device_close(t.dev);
    mem_free(t.bufs);
    arena_finish(&t.arena);
    return hash;
}

void op_run(op_case fn, const void *arg)
{
    static const int threads[] = { 1, 2, 3, 5 };
    uint64_t hash = run_once(fn, arg, 1, 0);
    for (size_t i = 1; i < (op_on_cpu() ? ARRAY_LEN(threads) : 2); i++)
        if (run_once(fn, arg, op_on_cpu() ? threads[i] : 0, 1) != hash)
            fail_msg("other bits with %d threads than with 1", threads[i]);
}

int op_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    struct sherd_device *dev = NULL;
    if (argc == 3 && strcmp(argv[1], "--device") == 0) {
        device_name = argv[2];
    } else if (argc != 1) {
        fprintf(stderr, "usage: %s [--device NAME]\n", argv[0]);
        return 2;
    }
    if (sherd_device_open(&dev, &(struct sherd_device_desc){ .name = device_name, .threads = 1 }) !=
        SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_error());
        return 77;
    }
    sherd_device_close(dev);
    return _cmocka_run_group_tests("ops", tests, n, NULL, NULL);
}

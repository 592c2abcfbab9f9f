/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Attention on a GPU against attention on the CPU: float by sherd's kernels, bf16 by cuDNN where the head
 * size is a multiple of 8 (and cuDNN is there), by sherd's kernels otherwise. And twice the same bits, unless
 * sums may be taken in any order. Skips without a GPU.
 */
#include "tests/t.h"

#include <stdlib.h>

#include <sherd/ops.h>

#include "base/half.h"
#include "tests/gpu/gpus.h"

struct shape {
    int64_t batch, seq, heads, kv_heads, head_dim;
};

/* Tiles of 16 to 64 rows and padded heads of 64, 128 and 256 are met exactly, and missed by one. */
static const struct shape shapes[] = {
    { 1, 1, 1, 1, 8 },
    { 2, 5, 2, 1, 16 },
    { 1, 64, 4, 4, 64 },
    { 2, 65, 4, 2, 64 },
    { 2, 128, 8, 2, 64 },
    { 3, 200, 6, 3, 40 },
    { 1, 130, 4, 1, 128 },
    { 2, 256, 4, 2, 128 },
    { 1, 97, 2, 2, 256 },
    { 1, 70, 3, 1, 33 },
    { 2, 90, 2, 2, 20 },
    { 1, 100, 4, 2, 100 },
    { 1, 50, 2, 1, 252 },
    { 1, 1024, 16, 4, 64 },
};

/* One device with its copy of everything; host copies of what came out, in float. */
struct side {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    void *qkv, *out, *lse, *dout, *dqkv, *scratch;
};

struct result {
    char *out, *lse, *dqkv; /* as they lie on the device */
    size_t out_bytes, lse_bytes, dqkv_bytes;
};

static void up(struct side *s, void **device, const void *host, size_t bytes)
{
    ASSERT_OK(sherd_device_alloc(s->dev, device, bytes ? bytes : 1));
    if (host && bytes)
        ASSERT_OK(sherd_copy(s->queue, &(struct sherd_copy){ .dst = *device, .src = host, .bytes = bytes }));
}

static char *down(struct side *s, const void *device, size_t bytes)
{
    char *host = malloc(bytes + 1);
    ASSERT_OK(sherd_copy(s->queue, &(struct sherd_copy){ .dst = host, .src = device, .bytes = bytes }));
    ASSERT_OK(sherd_queue_sync(s->queue));
    return host;
}

static char *random_elems(int64_t n, enum sherd_dtype type, uint64_t seed)
{
    char *p = malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (type == SHERD_F32)
            ((float *)(void *)p)[i] = t_float(seed, (uint64_t)i);
        else
            ((bf16 *)(void *)p)[i] = bf16_from_float(t_float(seed, (uint64_t)i));
    }
    return p;
}

static float elem(const char *p, int64_t i, enum sherd_dtype type)
{
    return type == SHERD_F32 ? ((const float *)(const void *)p)[i]
                             : bf16_to_float(((const bf16 *)(const void *)p)[i]);
}

static struct result run(struct side *s, const struct shape *d, enum sherd_dtype type, int any_order)
{
    size_t size = sherd_dtype_bytes(type);
    int64_t n_qkv = d->batch * d->seq * (d->heads + 2 * d->kv_heads) * d->head_dim;
    int64_t n_out = d->batch * d->seq * d->heads * d->head_dim;
    struct result r = { .out_bytes = (size_t)n_out * size,
        .lse_bytes = (size_t)(d->batch * d->heads * d->seq) * sizeof(float),
        .dqkv_bytes = (size_t)n_qkv * size };
    char *qkv = random_elems(n_qkv, type, 1), *dout = random_elems(n_out, type, 2);
    struct sherd_attention_forward f = { .batch = d->batch,
        .seq = d->seq,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .scale = 1.0f / sqrtf((float)d->head_dim),
        .type = type };
    struct sherd_attention_backward b = { .batch = d->batch,
        .seq = d->seq,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .scale = f.scale,
        .type = type,
        .any_order = any_order };
    size_t fs = sherd_attention_forward_scratch(&f), bs = sherd_attention_backward_scratch(&b, "cuda");
    up(s, &s->qkv, qkv, r.dqkv_bytes);
    up(s, &s->dout, dout, r.out_bytes);
    up(s, &s->out, NULL, r.out_bytes);
    up(s, &s->lse, NULL, r.lse_bytes);
    up(s, &s->dqkv, NULL, r.dqkv_bytes);
    up(s, &s->scratch, NULL, fs > bs ? fs : bs);
    f.out = s->out, f.lse = s->lse, f.qkv = s->qkv, f.scratch = s->scratch;
    b.dqkv = s->dqkv, b.dout = s->dout, b.out = s->out, b.qkv = s->qkv, b.lse = s->lse,
    b.scratch = s->scratch;
    ASSERT_OK(sherd_attention_forward(s->queue, &f));
    ASSERT_OK(sherd_attention_backward(s->queue, &b));
    r.out = down(s, s->out, r.out_bytes);
    r.lse = down(s, s->lse, r.lse_bytes);
    r.dqkv = down(s, s->dqkv, r.dqkv_bytes);
    void *all[] = { s->qkv, s->dout, s->out, s->lse, s->dqkv, s->scratch };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(s->dev, all[i]);
    free(qkv);
    free(dout);
    return r;
}

static void drop(struct result *r)
{
    free(r->out);
    free(r->lse);
    free(r->dqkv);
}

/* Elements apart by less than `tolerance` of the largest. */
static void close_to(const struct shape *d, const char *what, const char *got, const char *want, size_t bytes,
    enum sherd_dtype type, double tolerance)
{
    int64_t n = (int64_t)(bytes / sherd_dtype_bytes(type));
    double most = 0, apart = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = elem(got, i, type), y = elem(want, i, type);
        most = fmax(most, fabs(y));
        if (!(fabs(x - y) <= apart)) {
            apart = isnan(x) ? INFINITY : fabs(x - y);
            where = i;
        }
    }
    if (!(apart <= tolerance * most))
        fail_msg("%s %s, B %d T %d H %d K %d D %d: element %lld is %g, wanted %g; largest is %g",
            sherd_dtype_name(type), what, (int)d->batch, (int)d->seq, (int)d->heads, (int)d->kv_heads,
            (int)d->head_dim, (long long)where, (double)elem(got, where, type),
            (double)elem(want, where, type), most);
}

static void compare(enum sherd_dtype type, int any_order, double tolerance, double lse_tolerance)
{
    struct side cpu = { 0 }, gpu = { 0 };
    ASSERT_OK(sherd_device_open(&cpu.dev, &(struct sherd_device_desc){ .name = "cpu" }));
    ASSERT_OK(sherd_device_open(&gpu.dev, &(struct sherd_device_desc){ .name = "cuda" }));
    ASSERT_OK(sherd_queue_create(&cpu.queue, cpu.dev, SHERD_QUEUE_COMPUTE));
    ASSERT_OK(sherd_queue_create(&gpu.queue, gpu.dev, SHERD_QUEUE_COMPUTE));
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct shape *d = &shapes[i];
        struct result want = run(&cpu, d, type, any_order), got = run(&gpu, d, type, any_order),
                      again = run(&gpu, d, type, any_order);
        close_to(d, "out", got.out, want.out, want.out_bytes, type, tolerance);
        close_to(d, "lse", got.lse, want.lse, want.lse_bytes, SHERD_F32, lse_tolerance);
        close_to(d, "dqkv", got.dqkv, want.dqkv, want.dqkv_bytes, type, tolerance);
        assert_memory_equal(got.out, again.out, got.out_bytes);
        assert_memory_equal(got.lse, again.lse, got.lse_bytes);
        if (!any_order)
            assert_memory_equal(got.dqkv, again.dqkv, got.dqkv_bytes);
        drop(&want);
        drop(&got);
        drop(&again);
    }
    sherd_queue_destroy(cpu.queue);
    sherd_queue_destroy(gpu.queue);
    sherd_device_close(cpu.dev);
    sherd_device_close(gpu.dev);
}

static void test_float(void **state)
{
    (void)state;
    compare(SHERD_F32, 0, 2e-5, 1e-5);
    compare(SHERD_F32, 1, 2e-5, 1e-5);
}

/* Half of the last place of bf16 is 2^-9; the gradients go through several rounded products. */
static void test_bf16(void **state)
{
    (void)state;
    compare(SHERD_BF16, 0, 2e-2, 1e-4);
    compare(SHERD_BF16, 1, 2e-2, 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_bf16),
    };
    if (!gpus_one())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

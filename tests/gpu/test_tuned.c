/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Matrix products as tuning chooses them, the library's answers and others (device/cuda/matmul_near.c),
 * against its first answer; and what was chosen holds for the next run, with the same bits. Skips without a
 * GPU.
 */
#include "tests/t.h"

#include <stdlib.h>

#include <sherd/ops.h>

#include "base/file.h"
#include "base/half.h"
#include "tests/folder.h"
#include "tests/gpu/gpus.h"

#define PERIOD 1048573 /* of the operands' numbers: a prime, so that rows differ */

static char folder[FOLDER_BYTES];

/* The first three have better tiles than those of the library's answers on 132 multiprocessors, and take long
 * enough for these to be tried. */
static const struct sherd_matmul products[] = {
    { .m = 2048, .n = 5632, .k = 8192, .trans_a = 1, .type = SHERD_BF16, .c_type = SHERD_F32 },
    { .m = 16384, .n = 2048, .k = 2560, .type = SHERD_BF16, .c_type = SHERD_BF16 },
    { .m = 2560, .n = 2048, .k = 16384, .trans_a = 1, .type = SHERD_BF16, .c_type = SHERD_F32 },
    { .m = 96, .n = 320, .k = 64, .trans_b = 1, .type = SHERD_F32, .c_type = SHERD_F32 },
};

static size_t c_bytes(const struct sherd_matmul *a)
{
    return (size_t)(a->m * a->n) * sherd_dtype_bytes(a->c_type);
}

static void *random_operand(
    struct sherd_device *dev, struct sherd_queue *queue, int64_t elems, enum sherd_dtype type, uint64_t seed)
{
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    char *host = malloc(bytes);
    void *at;
    for (int64_t i = 0; i < elems; i++) {
        float x = t_float(seed, (uint64_t)(i % PERIOD));
        if (type == SHERD_F32)
            ((float *)(void *)host)[i] = x;
        else
            ((bf16 *)(void *)host)[i] = bf16_from_float(x);
    }
    ASSERT_OK(sherd_device_alloc(dev, &at, bytes));
    ASSERT_OK(sherd_copy(queue, &(struct sherd_copy){ .dst = at, .src = host, .bytes = bytes }));
    ASSERT_OK(sherd_queue_sync(queue));
    free(host);
    return at;
}

/* The product by a device opened so; the second call is by the plan that the first one made. */
static char *multiply(const struct sherd_matmul *product, const char *tune)
{
    struct sherd_matmul a = *product;
    struct sherd_device *dev;
    struct sherd_queue *queue;
    size_t bytes = c_bytes(&a);
    char *poison = malloc(bytes), *out = malloc(bytes);
    void *operands[2], *c;
    memset(poison, 0xff, bytes);
    ASSERT_OK(sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cuda", .tune = tune }));
    ASSERT_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_COMPUTE));
    a.a = operands[0] = random_operand(dev, queue, a.m * a.k, a.type, 1);
    a.b = operands[1] = random_operand(dev, queue, a.k * a.n, a.type, 2);
    ASSERT_OK(sherd_device_alloc(dev, &c, bytes));
    a.c = c;
    for (int call = 0; call < 2; call++) {
        ASSERT_OK(sherd_copy(queue, &(struct sherd_copy){ .dst = c, .src = poison, .bytes = bytes }));
        ASSERT_OK(sherd_matmul(queue, &a));
    }
    ASSERT_OK(sherd_copy(queue, &(struct sherd_copy){ .dst = out, .src = c, .bytes = bytes }));
    ASSERT_OK(sherd_queue_sync(queue));
    sherd_device_free(dev, operands[0]);
    sherd_device_free(dev, operands[1]);
    sherd_device_free(dev, c);
    sherd_queue_destroy(queue);
    sherd_device_close(dev);
    free(poison);
    return out;
}

static double value(const struct sherd_matmul *a, const char *c, int64_t i)
{
    return (double)(a->c_type == SHERD_F32 ? ((const float *)(const void *)c)[i]
                                           : bf16_to_float(((const bf16 *)(const void *)c)[i]));
}

/* Sums of floats in another order; and rounded to 16 bits, of which the last may differ. */
static void assert_near(const struct sherd_matmul *a, const char *c, const char *want)
{
    double error = 0, whole = 0;
    for (int64_t i = 0; i < a->m * a->n; i++) {
        double x = value(a, c, i), y = value(a, want, i);
        error += (x - y) * (x - y);
        whole += y * y;
    }
    error = sqrt(error / whole);
    if (!(error < (a->c_type == SHERD_F32 ? 1e-5 : 2e-3)))
        fail_msg("%d x %d x %d: %g from the first answer's", (int)a->m, (int)a->n, (int)a->k, error);
}

static void tuned_products_are_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(products); i++) {
        const struct sherd_matmul *a = &products[i];
        char *plain = multiply(a, NULL), *tuned = multiply(a, folder), *again = multiply(a, folder);
        assert_near(a, tuned, plain);
        assert_memory_equal(again, tuned, c_bytes(a));
        free(plain);
        free(tuned);
        free(again);
    }
}

static int make_folder(void **state)
{
    (void)state;
    return folder_make(folder, "tuned");
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuned_products_are_right),
    };
    if (!gpus_one())
        return 77;
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The CPU without address space for OpenBLAS: a device works as long as it multiplies nothing, products are
 * refused, and what a queue has taken stays enough for it; one thread more that multiplies fails with a
 * status and does not wait.
 */
#include "tests/limit.h"

#include <sherd/ops.h>

#include "device/ops.h"

#define ROWS 40 /* beyond what OpenBLAS multiplies without a buffer */
#define SPARE ((size_t)16 << 20)

static float a[ROWS * ROWS], c[ROWS * ROWS];

/* c = a a: the queue's status. */
static int multiply(struct sherd_queue *queue)
{
    int st = sherd_matmul(queue, &(struct sherd_matmul){ .c = c,
                                     .a = a,
                                     .b = a,
                                     .m = ROWS,
                                     .n = ROWS,
                                     .k = ROWS,
                                     .type = SHERD_F32,
                                     .c_type = SHERD_F32 });
    SHERD_KEEP(st, sherd_queue_sync(queue));
    return st;
}

static int is_refused(int st, const char *wanted)
{
    return st == SHERD_ENOMEM && strstr(sherd_error(), "device cpu: out of memory: OpenBLAS wants ") &&
           strstr(sherd_error(), wanted) && strstr(sherd_error(), "(ulimit -v)");
}

static int begin_without_room(void)
{
    struct sherd_device *dev = NULL;
    struct sherd_queue *queue = NULL;
    if (sherd_device_open(&dev, &(struct sherd_device_desc){ .threads = 2 }) != SHERD_OK ||
        sherd_queue_create(&queue, dev, SHERD_QUEUE_COMPUTE) != SHERD_OK)
        return 1;
    if (sherd_fill(queue, &(struct sherd_fill){ .dst = a, .bytes = sizeof(a) }) != SHERD_OK ||
        sherd_queue_sync(queue) != SHERD_OK)
        return 2;
    if (!is_refused(device_will_multiply(queue), "OpenBLAS wants 320 MiB") ||
        !is_refused(multiply(queue), "for each of the 2 threads"))
        return 3;
    sherd_queue_destroy(queue);
    sherd_device_close(dev);
    return 0;
}

static void products_without_room_are_refused(void **state)
{
    (void)state;
    if (!LIMIT_WORKS)
        skip();
    assert_int_equal(limit_run(SPARE, begin_without_room), 0);
}

static int multiply_without_room(void)
{
    struct sherd_device *dev = NULL;
    struct sherd_queue *first = NULL, *second = NULL;
    for (int i = 0; i < ROWS * ROWS; i++)
        a[i] = 1.0f;
    if (sherd_device_open(&dev, &(struct sherd_device_desc){ .threads = 1 }) != SHERD_OK ||
        sherd_queue_create(&first, dev, SHERD_QUEUE_COMPUTE) != SHERD_OK ||
        sherd_queue_create(&second, dev, SHERD_QUEUE_COMPUTE) != SHERD_OK)
        return 1;
    if (device_will_multiply(first) != SHERD_OK || !limit_spare(SPARE))
        return 2;
    if (multiply(first) != SHERD_OK || c[0] != ROWS || c[ROWS * ROWS - 1] != ROWS)
        return 3;
    if (!is_refused(multiply(second), "for each of the 2 threads"))
        return 4;
    if (multiply(first) != SHERD_OK)
        return 5;
    /* What the first had is the second's then. */
    sherd_queue_destroy(first);
    if (multiply(second) != SHERD_OK)
        return 6;
    sherd_queue_destroy(second);
    sherd_device_close(dev);
    return 0;
}

static void what_was_taken_is_enough(void **state)
{
    (void)state;
    if (!LIMIT_WORKS)
        skip();
    assert_int_equal(limit_run((size_t)1 << 30, multiply_without_room), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_without_room_are_refused),
        cmocka_unit_test(what_was_taken_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Devices by name, memory counters, queues, events, failures that wait for the sync, and the pool under two
 * callers. What concerns threads runs on the CPU only.
 */
#include "tests/ops/checkop.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "device/ops.h"

/* ---- devices ---- */

static void unknown_devices_are_refused(void **state)
{
    struct sherd_device *dev;
    (void)state;
    ASSERT_FAILS(
        sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "gpu" }), SHERD_EINVAL, "'gpu'");
    ASSERT_FAILS(
        sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cpu:1" }), SHERD_EINVAL, "'cpu:1'");
    ASSERT_FAILS(sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "" }), SHERD_EINVAL, "''");
    ASSERT_FAILS(
        sherd_device_open(&dev, &(struct sherd_device_desc){ .threads = -1 }), SHERD_EINVAL, "-1 threads");
}

/* With the plugin, its driver and a GPU this opens; else it must be a sentence that says what is missing. */
static void cuda_opens_or_says_why(void **state)
{
    struct sherd_device *dev = NULL;
    (void)state;
    int st = sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cuda" });
    if (st != SHERD_OK)
        ASSERT_FAILS(st, SHERD_EUNSUPPORTED, "device 'cuda'");
    sherd_device_close(dev);
}

static void memory_is_counted(void **state)
{
    struct sherd_device *dev = op_device(1, 0);
    struct sherd_device_counters c;
    void *a, *b;
    size_t total, available;
    (void)state;
    ASSERT_OK(sherd_device_alloc(dev, &a, 1000));
    ASSERT_OK(sherd_device_alloc(dev, &b, 5000));
    assert_int_equal((uintptr_t)a % 256, 0);
    sherd_device_free(dev, a);
    sherd_device_read(dev, &c);
    assert_int_equal(c.allocs, 2);
    assert_int_equal(c.bytes, 5000);
    assert_int_equal(c.peak_bytes, 6000);
    sherd_device_free(dev, b);
    sherd_device_free(dev, NULL);
    sherd_device_read(dev, &c);
    assert_int_equal(c.bytes, 0);
    ASSERT_OK(sherd_device_memory(dev, &total, &available));
    assert_true(total > 0 && available <= total);
    ASSERT_FAILS(sherd_device_alloc(dev, &a, SIZE_MAX / 2), SHERD_ENOMEM, "device");
    sherd_device_close(dev);
}

/* ---- order ---- */

struct frame {
    struct sherd_device *dev;
    struct sherd_queue *compute, *side;
};

static struct frame open_frame(int async)
{
    struct frame f = { .dev = op_device(2, async) };
    ASSERT_OK(sherd_queue_create(&f.compute, f.dev, SHERD_QUEUE_COMPUTE));
    ASSERT_OK(sherd_queue_create(&f.side, f.dev, SHERD_QUEUE_SIDE));
    return f;
}

static void close_frame(struct frame *f)
{
    sherd_queue_destroy(f->side);
    sherd_queue_destroy(f->compute);
    sherd_device_close(f->dev);
}

struct log {
    int n, seen[1000];
};

struct entry {
    struct log *log;
    int value;
};

static int append(void *args)
{
    const struct entry *e = args;
    e->log->seen[e->log->n++] = e->value;
    return SHERD_OK;
}

static int submit(struct sherd_queue *queue, struct log *log, int value)
{
    return queue->dev->ops->submit(queue, append, &(struct entry){ log, value }, sizeof(struct entry));
}

/* More jobs than the ring holds. */
static void a_queue_keeps_its_order(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct frame f = open_frame(async);
        struct log log = { 0 };
        for (int i = 0; i < 1000; i++)
            ASSERT_OK(submit(f.side, &log, i));
        ASSERT_OK(sherd_queue_sync(f.side));
        assert_int_equal(log.n, 1000);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(log.seen[i], i);
        close_frame(&f);
    }
}

/* Values handed over and back many times: only events order the two queues. */
static void events_order_two_queues(void **state)
{
    struct frame f = open_frame(1);
    struct sherd_event *there, *back;
    float x = 1, y = 0, z = 0;
    (void)state;
    ASSERT_OK(sherd_event_create(&there, f.dev));
    ASSERT_OK(sherd_event_create(&back, f.dev));
    ASSERT_OK(sherd_event_wait(f.compute, back)); /* never recorded: no wait */
    for (int i = 0; i < 200; i++) {
        x = (float)i;
        ASSERT_OK(sherd_event_record(there, f.compute));
        ASSERT_OK(sherd_event_wait(f.side, there));
        ASSERT_OK(sherd_accumulate(
            f.side, &(struct sherd_accumulate){ .dst = &y, .src = &x, .n = 1, .src_type = SHERD_F32 }));
        ASSERT_OK(sherd_event_record(back, f.side));
        ASSERT_OK(sherd_event_wait(f.compute, back));
        z += x;
        assert_true(y == z);
    }
    sherd_event_destroy(back);
    sherd_event_destroy(there);
    close_frame(&f);
}

static void a_side_queue_waits_for_another(void **state)
{
    struct frame f = open_frame(1);
    struct sherd_queue *other;
    struct sherd_event *event;
    struct log log = { 0 };
    (void)state;
    ASSERT_OK(sherd_queue_create(&other, f.dev, SHERD_QUEUE_SIDE));
    ASSERT_OK(sherd_event_create(&event, f.dev));
    cpu_test_delay(f.dev, 5000);
    ASSERT_OK(submit(f.side, &log, 1));
    ASSERT_OK(sherd_event_record(event, f.side));
    ASSERT_OK(sherd_event_wait(other, event));
    ASSERT_OK(submit(other, &log, 2));
    sherd_event_destroy(event); /* waits for its users */
    ASSERT_OK(sherd_queue_sync(other));
    assert_int_equal(log.seen[0], 1);
    assert_int_equal(log.seen[1], 2);
    sherd_queue_destroy(other);
    close_frame(&f);
}

static void delayed_work_overlaps(void **state)
{
    struct frame f = open_frame(1);
    struct sherd_event *begin, *end;
    struct log log = { 0 };
    double ms;
    (void)state;
    ASSERT_OK(sherd_event_create(&begin, f.dev));
    ASSERT_OK(sherd_event_create(&end, f.dev));
    ASSERT_FAILS(sherd_event_elapsed(begin, end, &ms), SHERD_EINVAL, "not recorded");
    cpu_test_delay(f.dev, 20000);
    double start = clock_seconds();
    ASSERT_OK(sherd_event_record(begin, f.side));
    ASSERT_OK(submit(f.side, &log, 0));
    ASSERT_OK(submit(f.side, &log, 1));
    ASSERT_OK(sherd_event_record(end, f.side));
    double submitted = clock_seconds() - start;
    ASSERT_OK(sherd_event_sync(end));
    assert_true(submitted < 0.040);
    assert_true(clock_seconds() - start >= 0.040);
    ASSERT_OK(sherd_event_elapsed(begin, end, &ms));
    assert_true(ms >= 40);
    sherd_event_destroy(end);
    sherd_event_destroy(begin);
    close_frame(&f);
}

/* ---- failures ---- */

static int fail_with(void *args)
{
    return SHERD_FAIL(SHERD_ECOMM, "host function %d failed", *(int *)args);
}

static void the_first_failure_comes_out_at_sync(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct frame f = open_frame(kind != 1);
        struct sherd_queue *queue = kind == 2 ? f.compute : f.side;
        struct log log = { 0 };
        for (int i = 1; i <= 2; i++)
            ASSERT_OK(f.dev->ops->submit(queue, fail_with, &i, sizeof(i)));
        ASSERT_OK(submit(queue, &log, 1));
        sherd_fail(SHERD_EINVAL, "another text of this thread");
        ASSERT_FAILS(sherd_queue_sync(queue), SHERD_ECOMM, "host function 1 failed");
        assert_int_equal(log.n, 0);
        ASSERT_OK(submit(queue, &log, 1));
        ASSERT_OK(sherd_queue_sync(queue));
        assert_int_equal(log.n, 1);
        close_frame(&f);
    }
}

static void large_arguments_are_refused(void **state)
{
    struct frame f = open_frame(1);
    char big[4096] = { 0 };
    (void)state;
    ASSERT_FAILS(f.dev->ops->submit(f.side, append, big, sizeof(big)), SHERD_EINVAL, "4096 bytes");
    close_frame(&f);
}

/* ---- the pool ---- */

static void count_task(const void *ctx, int64_t task, void *panel)
{
    _Atomic int *const *counts = ctx;
    ((char *)panel)[0] = 1;
    ((char *)panel)[4095] = 1;
    atomic_fetch_add(&(*counts)[task], 1);
}

struct caller {
    struct cpu_lane lane;
    _Atomic int counts[64];
    int rounds;
};

static void *call_often(void *arg)
{
    struct caller *c = arg;
    _Atomic int *counts = c->counts;
    for (int i = 0; i < c->rounds; i++)
        if (cpu_parallel(&c->lane, count_task, &counts, 1 + i % 64, 4096) != SHERD_OK)
            return arg;
    return NULL;
}

/* Three callers at once, two of them of side queues: every task of every job runs exactly once. */
static void callers_share_the_pool(void **state)
{
    struct cpu_pool *pool;
    struct caller callers[3] = { 0 };
    pthread_t threads[3];
    (void)state;
    ASSERT_OK(cpu_pool_create(&pool, 4));
    for (int i = 0; i < 3; i++) {
        callers[i].lane = (struct cpu_lane){ .pool = pool, .side = i > 0 };
        callers[i].rounds = 640;
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
        for (int task = 0; task < 64; task++)
            assert_int_equal(callers[i].counts[task], 10 * (64 - task));
        cpu_lane_finish(&callers[i].lane);
    }
    cpu_pool_destroy(pool);
}

/* After the first time, operations allocate nothing. */
static void warm_operations_do_not_allocate(void **state)
{
    struct frame f = open_frame(1);
    enum { N = 300 };
    uint16_t *x = mem_zalloc(N * N, sizeof(*x)), *y = mem_zalloc(N * N, sizeof(*y));
    float *z = mem_zalloc(N * N, sizeof(*z));
    uint64_t warm = 0;
    (void)state;
    for (int i = 0; i < 3; i++) {
        warm = i == 1 ? mem_count() : warm;
        ASSERT_OK(sherd_matmul(f.compute,
            &(struct sherd_matmul){
                .c = y, .a = x, .b = x, .m = N, .n = N, .k = N, .type = SHERD_BF16, .c_type = SHERD_BF16 }));
        ASSERT_OK(sherd_accumulate(
            f.side, &(struct sherd_accumulate){ .dst = z, .src = x, .n = N * N, .src_type = SHERD_BF16 }));
        ASSERT_OK(sherd_queue_sync(f.side));
        ASSERT_OK(sherd_queue_sync(f.compute));
    }
    assert_int_equal(mem_count(), warm);
    struct sherd_device_counters c;
    sherd_device_read(f.dev, &c);
    assert_int_equal(c.ops, 6);
    assert_true(c.flops == 3 * 2.0 * N * N * N);
    mem_free(x);
    mem_free(y);
    mem_free(z);
    close_frame(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_devices_are_refused),
        cmocka_unit_test(cuda_opens_or_says_why),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(a_queue_keeps_its_order),
        cmocka_unit_test(events_order_two_queues),
        cmocka_unit_test(a_side_queue_waits_for_another),
        cmocka_unit_test(delayed_work_overlaps),
        cmocka_unit_test(the_first_failure_comes_out_at_sync),
        cmocka_unit_test(large_arguments_are_refused),
        cmocka_unit_test(callers_share_the_pool),
        cmocka_unit_test(warm_operations_do_not_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

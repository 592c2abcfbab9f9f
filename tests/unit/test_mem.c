/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Allocation: zeroing, overflow, counting, injected failure, arena.
 */
#include "tests/check.h"

#include <pthread.h>

#include "base/mem.h"

static void zeroed_and_freed(void **state)
{
    (void)state;
    unsigned char *p = mem_zalloc(100, 3);
    assert_non_null(p);
    for (int i = 0; i < 300; i++)
        assert_int_equal(p[i], 0);
    mem_free(p);
    void *none = mem_zalloc(0, 8);
    assert_non_null(none);
    mem_free(none);
    mem_free(NULL);
}

static void overflow_is_refused_with_text(void **state)
{
    (void)state;
    assert_null(mem_zalloc(SIZE_MAX / 2, 3));
    ASSERT_CONTAINS(sherd_error(), "address space");
    char *p = mem_strdup("kept");
    assert_null(mem_realloc(p, SIZE_MAX / 2, 3));
    assert_string_equal(p, "kept");
    mem_free(p);
    struct arena arena = { 0 };
    assert_null(arena_zalloc(&arena, SIZE_MAX / 2, 3));
    assert_null(arena_zalloc(&arena, SIZE_MAX, 1));
    arena_finish(&arena);
}

static void aligned(void **state)
{
    (void)state;
    for (size_t align = sizeof(void *); align <= 4096; align *= 2) {
        void *p = mem_aligned(align, 10);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        mem_free(p);
    }
    void *p = mem_aligned(64, 0);
    assert_non_null(p);
    mem_free(p);
}

static void copies_and_prints(void **state)
{
    (void)state;
    char *a = mem_strdup(""), *b = mem_printf("%s-%03d", "x", 7);
    assert_string_equal(a, "");
    assert_string_equal(b, "x-007");
    mem_free(a);
    mem_free(b);
}

static void grows_and_keeps(void **state)
{
    (void)state;
    int *items = NULL, cap = 0;
    for (int i = 0; i < 1000; i++) {
        ASSERT_OK(mem_grow(&items, &cap, i + 1, sizeof(*items)));
        assert_true(cap > i);
        items[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(items[i], i);
    int before = cap;
    mem_fail_at(1);
    ASSERT_FAILS(mem_grow(&items, &cap, cap + 1, sizeof(*items)), SHERD_ENOMEM, "out of memory");
    assert_int_equal(cap, before);
    assert_int_equal(items[999], 999);
    mem_free(items);
}

static void kth_allocation_fails_once(void **state)
{
    (void)state;
    mem_fail_at(3);
    void *p[4];
    for (int i = 0; i < 4; i++)
        p[i] = mem_zalloc(8, 8);
    assert_non_null(p[0]);
    assert_non_null(p[1]);
    assert_null(p[2]);
    ASSERT_CONTAINS(sherd_error(), "out of memory: 64 bytes of host memory could not be allocated; ");
    ASSERT_CONTAINS(sherd_error(), "the host has ");
    assert_non_null(p[3]);
    for (int i = 0; i < 4; i++)
        mem_free(p[i]);
    mem_fail_at(1);
    assert_null(mem_aligned(64, 64));
    mem_fail_at(1);
    assert_null(mem_strdup("x"));
    mem_fail_at(1);
    assert_null(mem_printf("%d", 1));
    mem_fail_at(1);
    mem_fail_at(0);
    char *fine = mem_strdup("x");
    assert_non_null(fine);
    mem_free(fine);
}

#define THREADS 4
#define EACH 5000

static void *allocate_many(void *arg)
{
    for (int i = 0; i < EACH; i++) {
        void *p = mem_zalloc(1, 1);
        *(int *)arg += !p;
        mem_free(p);
    }
    return NULL;
}

static void counting_and_injection_hold_over_threads(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    int failed[THREADS] = { 0 }, sum = 0;
    uint64_t before = mem_count();
    mem_fail_at(THREADS * EACH / 2);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, allocate_many, &failed[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        sum += failed[i];
    }
    assert_int_equal(sum, 1);
    assert_int_equal(mem_count() - before, THREADS * EACH);
}

static void arena_gives_apart_aligned_zeroed_blocks(void **state)
{
    (void)state;
    struct arena arena = { 0 };
    unsigned char *last = NULL;
    for (size_t n = 0; n < 200; n++) {
        unsigned char *p = arena_zalloc(&arena, n, 7);
        assert_non_null(p);
        assert_ptr_not_equal(p, last);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n * 7; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, n * 7);
        last = p;
    }
    unsigned char *big = arena_zalloc(&arena, 1, 100000);
    assert_non_null(big);
    memset(big, 0xff, 100000);
    assert_string_equal(arena_strdup(&arena, "abc"), "abc");
    assert_string_equal(arena_printf(&arena, "%d%%", 5), "5%");
    mem_fail_at(1);
    assert_null(arena_zalloc(&arena, 1, 100000));
    arena_finish(&arena);
    assert_null(arena.head);
    arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeroed_and_freed),
        cmocka_unit_test(overflow_is_refused_with_text),
        cmocka_unit_test(aligned),
        cmocka_unit_test(copies_and_prints),
        cmocka_unit_test(grows_and_keeps),
        cmocka_unit_test(kth_allocation_fails_once),
        cmocka_unit_test(counting_and_injection_hold_over_threads),
        cmocka_unit_test(arena_gives_apart_aligned_zeroed_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The queue of writes, by io_uring and by threads, through the page cache and past it: every byte arrives,
 * short writes are continued, writes that may not go past the page cache go through it, a system that can
 * take none now is asked again when it has written others, and a failure comes out with the write that it
 * belongs to.
 */
#include "tests/check.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/write.h"

#define OPS 24
#define PIECE ((size_t)16384)
#define DEPTH 5

static char root[] = "test-write-XXXXXX"; /* where the build lies: a disk, most often, which O_DIRECT needs */
static atomic_int asked;
static int fail_at, short_at, refuse_at; /* refuse_at: from there on, past the page cache */
static int hook_fd;
/* Calls of that name that the system has nothing for now: hand-overs of a ring, or answers. */
static const char *busy_call = "";
static int calls, busy_from, busy_to;

static int hook(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    if (!strcmp(call, busy_call)) {
        calls++;
        return calls >= busy_from && calls < busy_to ? EAGAIN : 0;
    }
    if (strcmp(call, "write"))
        return 0;
    int n = ++asked;
    if (n == short_at)
        *bytes /= 2; /* still aligned, as the system's own */
    if (refuse_at && n >= refuse_at && file_is_direct(hook_fd))
        return EINVAL;
    return n == fail_at ? ENOSPC : 0;
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + i / 251);
}

static void check_failure(int st, const char *path, const char *why)
{
    if (st == SHERD_OK)
        return;
    assert_int_equal(st, SHERD_EIO);
    ASSERT_CONTAINS(sherd_error(), path);
    ASSERT_CONTAINS(sherd_error(), why);
}

/* Writes all pieces, last ones first; how many failed, all for that reason. */
static int write_all(
    struct write_queue *q, int fd, size_t align, const unsigned char *data, const char *path, const char *why)
{
    struct write_op ops[OPS], *op;
    int under_way = 0, failed = 0, taken = 0;
    for (int i = OPS - 1; i >= 0; i--) {
        ops[i] = (struct write_op){ .fd = fd,
            .path = path,
            .data = data + (size_t)i * PIECE,
            .bytes = PIECE,
            .offset = (uint64_t)i * PIECE,
            .align = align };
        if (under_way == DEPTH) {
            int st = write_queue_take(q, &op);
            assert_non_null(op);
            assert_int_equal(op->status, st);
            check_failure(st, path, why);
            failed += st != SHERD_OK;
            under_way--;
            taken++;
        }
        write_queue_put(q, &ops[i]);
        under_way++;
    }
    for (;;) {
        int st = write_queue_take(q, &op);
        if (!op)
            break;
        check_failure(st, path, why);
        failed += st != SHERD_OK;
        taken++;
    }
    assert_int_equal(taken, OPS);
    return failed;
}

static void check_file(const char *path)
{
    struct file_map map;
    ASSERT_OK(file_map(&map, path));
    assert_int_equal(map.bytes, OPS * PIECE);
    for (size_t i = 0; i < map.bytes; i++)
        if (map.data[i] != byte_at(i))
            fail_msg("byte %zu is %d, wanted %d", i, map.data[i], byte_at(i));
    file_unmap(&map);
}

static void try(enum write_kind kind, int want_direct)
{
    struct write_queue *q;
    unsigned char *data = mem_aligned(FILE_DIRECT_ALIGN, OPS * PIECE);
    char path[64];
    int fd, direct = 0;
    for (size_t i = 0; i < OPS * PIECE; i++)
        data[i] = byte_at(i);
    for (int fault = 0; fault < 4; fault++) {
        snprintf(path, sizeof(path), "%s/file", root);
        if (want_direct)
            ASSERT_OK(file_open_direct(&fd, &direct, path));
        else
            ASSERT_OK(file_open_new(&fd, path));
        ASSERT_OK(file_reserve(fd, OPS * PIECE, path));
        asked = 0;
        short_at = fault == 1 ? 7 : 0;
        fail_at = fault == 2 ? 9 : 0;
        refuse_at = fault == 3 ? 4 : 0;
        hook_fd = fd;
        ASSERT_OK(write_queue_create(&q, DEPTH, kind));
        assert_true(kind == WRITE_ANY || !strcmp(write_queue_name(q), "threads"));
        assert_int_equal(
            write_all(q, fd, direct ? FILE_DIRECT_ALIGN : 1, data, path, "No space left"), fault == 2);
        write_queue_destroy(q);
        assert_int_equal(file_is_direct(fd), direct && fault != 3);
        ASSERT_OK(file_close(fd, path));
        if (fault != 2)
            check_file(path);
        ASSERT_OK(file_remove_tree(path));
    }
    mem_free(data);
}

static void try_busy(const char *call, int from, int to, int want_failed)
{
    struct write_queue *q;
    unsigned char *data = mem_aligned(FILE_DIRECT_ALIGN, OPS * PIECE);
    char path[64];
    int fd;
    for (size_t i = 0; i < OPS * PIECE; i++)
        data[i] = byte_at(i);
    snprintf(path, sizeof(path), "%s/busy", root);
    ASSERT_OK(file_open_new(&fd, path));
    short_at = fail_at = refuse_at = calls = 0;
    busy_call = call;
    busy_from = from;
    busy_to = to;
    ASSERT_OK(write_queue_create(&q, DEPTH, WRITE_ANY));
    assert_int_equal(write_all(q, fd, 1, data, path, "Resource temporarily unavailable"), want_failed);
    write_queue_destroy(q);
    busy_call = "";
    ASSERT_OK(file_close(fd, path));
    if (!want_failed)
        check_file(path);
    ASSERT_OK(file_remove_tree(path));
    mem_free(data);
}

static void a_busy_system_is_asked_again_or_told(void **state)
{
    (void)state;
    struct write_queue *q;
    ASSERT_OK(write_queue_create(&q, DEPTH, WRITE_ANY));
    int uring = !strcmp(write_queue_name(q), "io_uring");
    write_queue_destroy(q);
    if (!uring)
        skip();
    try_busy("submit", 3, 6, 0);
    try_busy("submit", 3, INT_MAX, OPS - 2); /* the first two are written, and free nothing */
    try_busy("submit", 1, 2, OPS);           /* nothing is under way that could free anything */
    try_busy("answer", 1, DEPTH, 0);
    try_busy("answer", 3, INT_MAX, OPS - 2);
}

static int refusals;

static void count_refusals(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    refusals += strstr(text, "refuses transfers past the page cache") != NULL;
}

static void every_way(void **state)
{
    (void)state;
    int fd, direct;
    char path[64];
    snprintf(path, sizeof(path), "%s/look", root);
    ASSERT_OK(file_open_direct(&fd, &direct, path));
    ASSERT_OK(file_close(fd, path));
    ASSERT_OK(file_remove_tree(path));
    sherd_log_set(count_refusals, NULL, SHERD_LOG_INFO);
    try(WRITE_ANY, 0);
    try(WRITE_ANY, 1);
    try(WRITE_THREADS, 0);
    try(WRITE_THREADS, 1);
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    assert_int_equal(refusals, direct); /* told once, if there was anything to tell */
}

static int no_direct(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    (void)bytes;
    return strcmp(call, "direct") ? 0 : EINVAL;
}

/* In a process of its own, which has not said it yet. */
static void refused_at_once(void)
{
    int fd, direct, wrong = 0;
    char path[64];
    refusals = 0;
    file_hook(no_direct);
    sherd_log_set(count_refusals, NULL, SHERD_LOG_INFO);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/through%d", root, i);
        wrong |= file_open_direct(&fd, &direct, path) != SHERD_OK || direct || file_is_direct(fd);
        wrong |= file_close(fd, path) != SHERD_OK || refusals != 1;
    }
    _exit(wrong);
}

/* What was to go past the page cache is written all the same, and the process says so once. */
static void refused_at_once_is_told(void **state)
{
    (void)state;
    int status, pid = (int)fork();
    assert_true(pid >= 0);
    if (pid == 0)
        refused_at_once();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void a_lock_names_its_holder(void **state)
{
    (void)state;
    int a, b;
    char path[64], text[64];
    snprintf(path, sizeof(path), "%s/lock", root);
    snprintf(text, sizeof(text), "is held by process %ld on ", (long)getpid());
    ASSERT_OK(file_lock(&a, path));
    ASSERT_FAILS(file_lock(&b, path), SHERD_EEXISTS, text);
    assert_int_equal(b, -1);
    ASSERT_OK(file_close(a, path));
    ASSERT_OK(file_lock(&b, path));
    ASSERT_OK(file_close(b, path));
}

static int enter(void **state)
{
    (void)state;
    file_hook(hook);
    return mkdtemp(root) ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    file_hook(NULL);
    return file_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_at_once_is_told),
        cmocka_unit_test(every_way),
        cmocka_unit_test(a_busy_system_is_asked_again_or_told),
        cmocka_unit_test(a_lock_names_its_holder),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}

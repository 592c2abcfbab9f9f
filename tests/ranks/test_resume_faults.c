/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every call of a resume that reads a checkpoint or changes a file system fails once. Nobody hangs, nothing
 * that is whole is renamed or removed, and the next resume goes on as if nothing had been.
 */
#include "tests/ranks/train.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ckpt.h>

#include "base/file.h"

#define MOST_CALLS 200

static _Atomic long calls, fail_at;

static int fail_once(const char *call, const char *path, size_t *bytes)
{
    (void)call;
    (void)path;
    (void)bytes;
    return ++calls == fail_at ? EIO : 0;
}

static void copy_step(const char *from, const char *to, int step)
{
    char **names;
    int n;
    ASSERT_OK(file_mkdirs(at("%s/step-%08d", to, step)));
    ASSERT_OK(file_list(&names, &n, at("%s/step-%08d", from, step)));
    for (int i = 0; i < n; i++) {
        struct file_map map;
        ASSERT_OK(file_map(&map, at("%s/step-%08d/%s", from, step, names[i])));
        ASSERT_OK(file_write_atomic(at("%s/step-%08d/%s", to, step, names[i]), map.data, map.bytes));
        file_unmap(&map);
    }
    file_list_free(names, n);
}

static void assert_sound(const char *dir, int step)
{
    struct sherd_ckpt *ckpt;
    ASSERT_OK(sherd_ckpt_open(&ckpt, at("%s/step-%08d", dir, step)));
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    sherd_ckpt_close(ckpt);
}

/* As a run left it that was killed in a save: with what it was writing. */
static void make_run(int damaged)
{
    ASSERT_OK(file_remove_tree(at("hurt")));
    copy_step("whole", "hurt", 3);
    copy_step("whole", "hurt", 6);
    ASSERT_OK(file_mkdirs(at("hurt/.tmp-step-00000009-0011223344556677")));
    ASSERT_OK(file_write_atomic(at("hurt/metrics.jsonl"), "{\"step\": 1}\n{\"step\": 7}\n", 24));
    if (!damaged)
        return;
    const char *path = at("hurt/step-00000006/weights-00001-of-00002.safetensors");
    uint64_t bytes;
    ASSERT_OK(file_size(&bytes, path));
    t_flip(path, bytes - 9);
}

/* 1 if the resume had so many calls. */
static int try(long k, int damaged)
{
    struct train hurt = { .dir = "hurt",
        .settings = { "run.resume=auto", "train.steps=3", "train.eval_every=0" } };
    struct train more = { .dir = "hurt", .settings = { "run.resume=required", "train.eval_every=0" } };
    make_run(damaged);
    calls = 0;
    fail_at = k;
    file_hook(fail_once);
    train(&hurt);
    file_hook(NULL);
    long made = calls;
    if ((hurt.status[0] == SHERD_OK) != (hurt.status[1] == SHERD_OK))
        fail_msg("call %ld: the ranks ended with %d and %d: %s%s", k, hurt.status[0], hurt.status[1],
            hurt.error[0], hurt.error[1]);
    assert_sound("hurt", 3);
    if (!damaged)
        assert_sound("hurt", 6);
    train(&more);
    if (more.status[0] != SHERD_OK || more.status[1] != SHERD_OK)
        fail_msg("after call %ld: %s", k, more.error[0]);
    same_step("whole", "hurt", 9);
    if (damaged && !file_exists(at("hurt/damaged-step-00000006")))
        fail_msg("call %ld: the damaged one is gone", k);
    assert_false(file_exists(at("hurt/.tmp-step-00000009-0011223344556677")));
    return made >= k;
}

static void one_call_fails(void **state)
{
    (void)state;
    struct train whole = { .dir = "whole", .settings = { "train.eval_every=0" } };
    train(&whole);
    for (int damaged = 0; damaged < 2; damaged++) {
        long k = 1;
        while (k < MOST_CALLS && try(k, damaged))
            k += CHECK_MANY(1, 7);
        assert_in_range(k, 20, MOST_CALLS - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_call_fails),
    };
    return cmocka_run_group_tests(tests, train_enter, train_leave);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a run tells beside its numbers: records that find no room, ranks and resumed runs that read other data
 * than they should, and steps that learn nothing.
 */
#include "tests/ranks/train.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

static _Atomic int records;

/* Two records of metrics.jsonl are torn, a third finds no room at all; those behind them do. */
static int full_for_records(const char *call, const char *path, size_t *bytes)
{
    if (!text_ends(path, "/metrics.jsonl") || strcmp(call, "write") != 0)
        return 0;
    int n = ++records;
    if (n == 5 || n == 6)
        *bytes = 10;
    return n == 7 ? ENOSPC : 0;
}

/* All lines of metrics.jsonl are whole; how many. */
static int count_records(const char *dir)
{
    char *text;
    size_t bytes;
    int n = 0;
    ASSERT_OK(file_read_text(&text, &bytes, at("%s/metrics.jsonl", dir), 1 << 20));
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_t *record;
        ASSERT_OK(json_parse(&record, line, (size_t)(end - line), "a record"));
        json_decref(record);
    }
    assert_true(bytes == 0 || text[bytes - 1] == '\n');
    mem_free(text);
    return n;
}

static void records_without_room(void **state)
{
    (void)state;
    struct train on = { .dir = "on", .settings = { "save.on_failure=continue" } }, stop = { .dir = "stop" };
    ASSERT_OK(file_mkdirs(at("on")));
    ASSERT_OK(file_write_atomic(at("on/metrics.jsonl.tmp.77"), "", 0)); /* as of a run that died */
    records = 0;
    file_hook(full_for_records);
    train(&on);
    const char *told = strstr(said.data, "training goes on without records");
    assert_true(told && !strstr(told + 1, "training goes on"));
    ASSERT_CONTAINS(said.data, "on/metrics.jsonl': No space left on device; free some there");
    assert_true(on.status[0] == SHERD_OK && on.status[1] == SHERD_OK && has_step("on", 9));
    assert_int_equal(count_records("on"), records - 3);
    assert_false(file_exists(at("on/metrics.jsonl.tmp.77")));
    records = 0;
    train(&stop);
    file_hook(NULL);
    assert_true(stop.status[0] == SHERD_EIO && stop.status[1] != SHERD_OK);
    ASSERT_CONTAINS(stop.error[0], "stop/metrics.jsonl': No space left on device");
    assert_int_equal(count_records("stop"), 4);
    ASSERT_OK(file_remove_tree(at("on")));
    ASSERT_OK(file_remove_tree(at("stop")));
}

/* Of ranks that read other data than rank 0, and of a run that goes on with other data. */
static void other_data_is_told(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    struct train t = { .dir = "other", .alone = 1 },
                 first = { .dir = "other", .settings = { "train.steps=3" } },
                 more = { .dir = "other", .settings = { "run.resume=required" } };
    ASSERT_OK(file_read_text(&text, &bytes, at("text"), 1 << 20));
    ASSERT_OK(file_write_atomic(at("text1"), text, bytes - 8));
    train(&t);
    assert_true(t.status[0] == SHERD_EPEER && t.status[1] == SHERD_ECONFIG);
    ASSERT_CONTAINS(t.error[1], "data.train: 1,992 tokens on rank 1, 2,000 on rank 0");
    text[0] ^= 1;
    ASSERT_OK(file_write_atomic(at("text1"), text, bytes));
    train(&t);
    assert_true(t.status[0] == SHERD_EPEER && t.status[1] == SHERD_ECONFIG);
    ASSERT_CONTAINS(t.error[1], "data.train: as many tokens on rank 1 as on rank 0, but others");
    assert_false(has_step("other", 3));
    train(&first);
    train(&more);
    assert_true(first.status[0] == SHERD_OK && more.status[0] == SHERD_OK);
    assert_null(strstr(said.data, "data.train: as many"));
    ASSERT_OK(file_rename(at("text"), at("kept")));
    ASSERT_OK(file_write_atomic(at("text"), text, bytes));
    more.settings[1] = "train.steps=12";
    train(&more);
    ASSERT_CONTAINS(said.data, "data.train: as many tokens as it was trained on, but others");
    ASSERT_OK(file_write_atomic(at("text"), text, bytes - 8));
    more.settings[1] = "train.steps=15";
    train(&more);
    ASSERT_CONTAINS(said.data, "data.train: 1,992 tokens, where it was trained on 2,000");
    assert_true(more.status[0] == SHERD_OK && has_step("other", 15));
    ASSERT_OK(file_rename(at("kept"), at("text")));
    ASSERT_OK(file_remove_tree(at("other")));
    mem_free(text);
}

static void assert_holds_not(const char *name, const char *part)
{
    char *text;
    ASSERT_OK(file_read_text(&text, NULL, at("%s", name), 1 << 20));
    if (strstr(text, part))
        fail_msg("%s holds %s", name, part);
    mem_free(text);
}

/* A validation loss that is no number ends no run, and no checkpoint is kept for it. */
static void a_validation_loss_that_is_not_finite(void **state)
{
    (void)state;
    struct train t = { .dir = "wild",
        .settings = { "optim.name=sgd", "optim.lr=1e6", "optim.clip=0", "train.nonfinite=skip",
            "train.eval_every=1", "save.keep=1", "save.keep_best=1" } };
    train(&t);
    assert_true(t.status[0] == SHERD_OK && t.status[1] == SHERD_OK);
    ASSERT_CONTAINS(said.data, "step 9 | the validation loss is not a finite number, over 640 tokens");
    assert_holds_not("wild/step-00000009/manifest.json", "val_loss");
    assert_true(count_records("wild") > 9);
    ASSERT_OK(file_remove_tree(at("wild")));
}

/* Where each token of the batch ends a document, a loss of 0 means nothing. */
static void steps_that_learn_nothing_are_told(void **state)
{
    (void)state;
    struct train t = { .dir = "nothing", .settings = { "data.end=97" } };
    char a[2000];
    memset(a, 'a', sizeof(a));
    ASSERT_OK(file_rename(at("text"), at("kept")));
    ASSERT_OK(file_write_atomic(at("text"), a, sizeof(a)));
    train(&t);
    assert_int_equal(t.status[0], SHERD_OK);
    ASSERT_CONTAINS(said.data, "step 1: none of its tokens is learnt from: each follows data.end");
    assert_null(strstr(said.data, "step 2: none"));
    ASSERT_CONTAINS(said.data, "step 3 | there is no validation loss: none of");
    assert_holds_not("nothing/step-00000009/manifest.json", "val_loss");
    ASSERT_OK(file_rename(at("kept"), at("text")));
    ASSERT_OK(file_remove_tree(at("nothing")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_without_room),
        cmocka_unit_test(other_data_is_told),
        cmocka_unit_test(a_validation_loss_that_is_not_finite),
        cmocka_unit_test(steps_that_learn_nothing_are_told),
    };
    return cmocka_run_group_tests(tests, train_enter, train_leave);
}

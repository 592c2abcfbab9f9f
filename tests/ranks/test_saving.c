/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Runs that save: beside training the same bytes as standing still, a save that fails on one rank, a folder
 * that is taken, and ranks whose copies have drifted apart.
 */
#include "tests/ranks/train.h"

#include <errno.h>
#include <stdio.h>

#include <sherd/sherd.h>

#include "base/file.h"
#include "base/mem.h"
#include "runtime/engine.h"
#include "runtime/resume.h"

/* The way of all checkpoints is told once, before the first step; "in 0.0s" is no time that one took. */
static void told_at_the_start(void **state)
{
    (void)state;
    static const char *const ways[] = { "save.async=false", "save.async=true" };
    static const char *const told[] = { "checkpoints are written by ",
        "checkpoints are written beside training by " };
    for (int i = 0; i < 2; i++) {
        struct train t = { .dir = "told", .settings = { ways[i], "log.every=1" } };
        train(&t);
        assert_true(t.status[0] == SHERD_OK && t.status[1] == SHERD_OK);
        const char *line = strstr(said.data, told[i]), *first = strstr(said.data, " 1/9 | ");
        assert_true(line && first && line < first);
        line += strlen(told[i]);
        assert_true(!strncmp(line, "io_uring", 8) || !strncmp(line, "threads", 7));
        assert_null(strstr(line, "are written by"));
        assert_null(strstr(said.data, " in 0.0s"));
        ASSERT_OK(file_remove_tree(at("told")));
    }
}

/* At every stage what is written beside training is what was there when the save began. */
static void beside_training_the_same_bytes(void **state)
{
    (void)state;
    static const char *const stages[] = { "shard.stage=0", "shard.stage=1", "shard.stage=2",
        "shard.stage=3" };
    for (int s = 0; s < 4; s++) {
        const char *type = s % 2 ? "dtype.param=bf16" : "dtype.param=f32";
        struct train a = { .dir = "a", .settings = { stages[s], type } };
        struct train b = { .dir = "b", .settings = { stages[s], type, "save.async=true" } };
        struct train c = { .dir = "c", .settings = { stages[s], type, "save.async=true", "save.buffer=1" } };
        train(&a);
        train(&b);
        ASSERT_CONTAINS(said.data, "step 3 is being saved");
        train(&c);
        for (int r = 0; r < WORLD; r++)
            assert_true(a.status[r] == SHERD_OK && b.status[r] == SHERD_OK && c.status[r] == SHERD_OK);
        for (int step = 3; step <= 9; step += 3) {
            same_step("a", "b", step);
            same_step("a", "c", step);
        }
        ASSERT_OK(file_remove_tree(at("a")));
        ASSERT_OK(file_remove_tree(at("b")));
        ASSERT_OK(file_remove_tree(at("c")));
    }
}

/* Of what is free the ranks of a host take half at most. */
static void room_by_what_is_free(void **state)
{
    (void)state;
    assert_true(engine_save_auto(1000, 8000, 4) == 1000);
    assert_true(engine_save_auto(1001, 8000, 4) == 1000);
    assert_true(engine_save_auto(1000, 0, 1) == 0);
    assert_true(mem_available() > 1 << 20);
}

/* Rank 1's files of step 6 find no space. */
static int full_at_six(const char *call, const char *path, size_t *bytes)
{
    (void)bytes;
    return strstr(path, "tmp-step-00000006") && strstr(path, "states-00001") && !strcmp(call, "write")
               ? ENOSPC
               : 0;
}

static void a_save_that_fails(void **state)
{
    (void)state;
    static const char *const ways[] = { "save.async=false", "save.async=true" };
    for (int i = 0; i < 2; i++) {
        struct train on = { .dir = "on", .settings = { ways[i], "save.on_failure=continue" } };
        /* on a busy host it may be seen first where the save of step 9 begins, which is not the last here */
        struct train stop = { .dir = "stop", .settings = { ways[i], "train.steps=12" } };
        file_hook(full_at_six);
        train(&on);
        ASSERT_CONTAINS(said.data, "the checkpoint of step 6 was not written");
        ASSERT_CONTAINS(said.data, "No space left");
        ASSERT_CONTAINS(said.data, "training goes on");
        train(&stop);
        file_hook(NULL);
        assert_true(on.status[0] == SHERD_OK && on.status[1] == SHERD_OK);
        assert_true(has_step("on", 3) && !has_step("on", 6) && has_step("on", 9));
        assert_true(stop.status[0] == SHERD_EPEER && stop.status[1] == SHERD_EIO);
        ASSERT_CONTAINS(stop.error[1], "the checkpoint of step 6 was not written: cannot write");
        ASSERT_CONTAINS(stop.error[0], "rank 1: ");
        assert_true(has_step("stop", 3) && !has_step("stop", 6) && !has_step("stop", 9));
        struct train more = { .dir = "stop", .settings = { ways[i], "run.resume=required" } };
        train(&more);
        ASSERT_CONTAINS(said.data, "step 3, 12 samples");
        assert_true(more.status[0] == SHERD_OK && has_step("stop", 6));
        same_step("on", "stop", 9);
        ASSERT_OK(file_remove_tree(at("on")));
        ASSERT_OK(file_remove_tree(at("stop")));
    }
}

/* The save before the last one fails, unseen until the end: the last step is saved all the same. */
static void a_failure_costs_no_later_step(void **state)
{
    (void)state;
    struct train t = { .dir = "late", .settings = { "train.steps=7", "save.async=true" } };
    file_hook(full_at_six);
    train(&t);
    file_hook(NULL);
    assert_true(has_step("late", 3) && !has_step("late", 6));
    /* seen before step 7, the run ends there; seen after, with step 7 */
    int seen_late = strstr(said.data, "step 7 is saved all the same") != NULL;
    assert_int_equal(has_step("late", 7), seen_late);
    assert_int_equal(t.status[1], seen_late ? SHERD_OK : SHERD_EIO);
    ASSERT_OK(file_remove_tree(at("late")));
}

/* Which stay: the newest, every sixth step, and the best by validation loss. */
static void a_run_keeps_what_it_was_told(void **state)
{
    (void)state;
    struct train t = { .dir = "kept", .settings = { "train.steps=15", "save.keep=1", "save.keep_every=6" } };
    struct train best = { .dir = "best",
        .settings = {
            "train.steps=15", "save.keep=1", "save.keep_best=1", "optim.lr=0", "save.async=true" } };
    train(&t);
    ASSERT_CONTAINS(said.data, "up to 4 at once: ");
    assert_true(has_step("kept", 6) && has_step("kept", 12) && has_step("kept", 15));
    assert_true(!has_step("kept", 3) && !has_step("kept", 9));
    train(&best); /* of equal losses the newer one is the best */
    assert_true(best.status[0] == SHERD_OK && has_step("best", 15) && !has_step("best", 12));
    ASSERT_OK(file_remove_tree(at("kept")));
    ASSERT_OK(file_remove_tree(at("best")));
}

/* What is under way when a run is asked to stop is finished, and the last step saved. */
static void a_stop_waits(void **state)
{
    (void)state;
    struct train t = { .dir = "stopped", .settings = { "save.async=true" }, .stop_at = 4 };
    struct sherd_ckpt *ckpt;
    train(&t);
    assert_true(t.status[0] == SHERD_ESTOPPED && t.status[1] == SHERD_ESTOPPED);
    for (int step = 3; step <= 4; step++) {
        ASSERT_OK(sherd_ckpt_open(&ckpt, at("stopped/step-%08d", step)));
        ASSERT_OK(sherd_ckpt_verify(ckpt));
        sherd_ckpt_close(ckpt);
    }
    ASSERT_OK(file_remove_tree(at("stopped")));
}

/* A stop reaches a run within a long evaluation, here of 63 micro-batches a rank: it is left, not waited
 * for. */
static void a_stop_in_an_evaluation(void **state)
{
    (void)state;
    struct train t = {
        .dir = "stopped", .settings = { "train.eval_batches=0", "shard.stage=3" }, .stop_at = 5
    };
    struct train on = t, whole = { .dir = "whole", .settings = { "train.eval_batches=0", "shard.stage=3" } };
    train(&t); /* asked before steps 1 to 3, and twice in the evaluation after step 3 */
    assert_true(t.status[0] == SHERD_ESTOPPED && t.status[1] == SHERD_ESTOPPED);
    ASSERT_CONTAINS(t.error[0], "stopped on request after step 3");
    ASSERT_CONTAINS(said.data, "step 3: the evaluation is left");
    assert_null(strstr(said.data, "| validation loss"));
    assert_true(has_step("stopped", 3) && !has_step("stopped", 4));
    on.stop_at = 0;
    on.settings[2] = "run.resume=required";
    train(&on);
    train(&whole);
    assert_true(on.status[0] == SHERD_OK && whole.status[0] == SHERD_OK);
    same_step("whole", "stopped", 9);
    ASSERT_OK(file_remove_tree(at("stopped")));
    ASSERT_OK(file_remove_tree(at("whole")));
}

static void a_taken_folder_is_refused(void **state)
{
    (void)state;
    int fd;
    char pid[32];
    struct train t = { .dir = "taken" };
    ASSERT_OK(file_mkdirs(at("taken")));
    ASSERT_OK(file_lock(&fd, at("taken/.lock")));
    train(&t);
    snprintf(pid, sizeof(pid), "process %ld on ", (long)getpid());
    assert_int_equal(t.status[0], SHERD_EEXISTS);
    assert_int_equal(t.status[1], SHERD_EPEER);
    ASSERT_CONTAINS(t.error[0], "another run writes into");
    ASSERT_CONTAINS(t.error[0], pid);
    ASSERT_CONTAINS(t.error[1], "rank 0: another run writes into");
    assert_false(file_exists(at("taken/flight.txt"))); /* it would be taken for the other run's */
    ASSERT_OK(file_close(fd, "lock"));
    train(&t);
    assert_int_equal(t.status[0], SHERD_OK);
    ASSERT_OK(file_remove_tree(at("taken")));
}

/* Rank 1's disk does not give what it has of the newest step. */
static int lost_at_nine(const char *call, const char *path, size_t *bytes)
{
    (void)bytes;
    return !strcmp(call, "read") && strstr(path, "step-00000009/weights-00001") ? EIO : 0;
}

/* A disk that fails is not a file that is damaged: nothing is passed over for it, but for the other's. */
static void ranks_that_cannot_load_for_two_reasons(void **state)
{
    (void)state;
    struct train t = { .dir = "two" }, more = { .dir = "two", .settings = { "run.resume=required" } };
    train(&t);
    file_hook(lost_at_nine);
    train(&more);
    assert_true(more.status[0] == SHERD_EPEER && more.status[1] == SHERD_EIO);
    assert_true(has_step("two", 9));
    FILE *states = fopen(at("two/step-00000009/states-00000-of-00002.safetensors"), "r+b");
    assert_true(states && fseek(states, -1, SEEK_END) == 0);
    assert_true(fputc(0x55, states) == 0x55 && fclose(states) == 0);
    train(&more);
    file_hook(NULL);
    assert_true(more.status[0] == SHERD_OK && more.status[1] == SHERD_OK);
    ASSERT_CONTAINS(said.data, "resumed from ");
    ASSERT_CONTAINS(said.data, "step 6, 24 samples");
    assert_true(has_step("two", 9) && file_exists(at("two/damaged-step-00000009/manifest.json")));
    ASSERT_OK(file_remove_tree(at("two")));
}

/* Memory of rank 1 that fails: behind every collective its copy of the first unit has another value. */
enum way_in { RESUMES, LOADS, IMPORTS };
struct drift {
    struct device_probe probe; /* first: the device calls with it */
    enum way_in way;
    struct sherd_engine *engine;
    int status;
};

static int look(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *span)
{
    (void)probe, (void)queue, (void)span;
    return SHERD_OK;
}

static int spoil(struct device_probe *probe, struct sherd_queue *queue)
{
    struct sherd_engine *e = ((struct drift *)probe)->engine;
    (void)queue;
    if (sherd_comm_rank(e->comm) == 1)
        memset(e->store.units[0].param[SHARD_TRAINED], 0x3f, sizeof(float));
    return SHERD_OK;
}

static void resume_and_drift(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct drift *d = (struct drift *)ctx + rank;
    struct sherd_config config;
    struct sherd_model *model;
    char dir[256], step[256], from[256];
    const char *set[] = { dir, "shard.stage=0", "run.resume=required" };
    int found;
    snprintf(dir, sizeof(dir), "run.dir=%s/drift", root);
    snprintf(step, sizeof(step), "%s/drift/step-00000009", root);
    snprintf(from, sizeof(from), "%s/drift-model", root);
    T_OK(sherd_config_parse(&config, train_config, strlen(train_config), "test", set, 3, WORLD));
    T_OK(sherd_config_model(&model, &config));
    T_OK(sherd_engine_create_blank(&d->engine,
        &(struct sherd_engine_desc){ .config = &config, .model = model, .device = dev, .comm = comm }));
    d->probe = (struct device_probe){ .begin = look, .end = spoil };
    dev->probe = &d->probe;
    d->status = d->way == RESUMES ? resume_run(d->engine, &config, NULL, &found)
                : d->way == LOADS ? sherd_engine_load(d->engine, step)
                                  : sherd_engine_import(d->engine, from, NULL);
    T_HAS(sherd_error(), "of unit ");
    T_HAS(sherd_error(), " on rank 1 are not those on rank 0, though all ranks hold the same");
    T_TRUE(!strstr(sherd_error(), "no checkpoint"));
    dev->probe = NULL;
    sherd_engine_destroy(d->engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

/* No file is damaged where ranks that have loaded it differ: none is passed over, none renamed. */
static void copies_that_drift_are_no_damaged_file(void **state)
{
    (void)state;
    struct train t = { .dir = "drift", .settings = { "shard.stage=0" } };
    train(&t);
    ASSERT_OK(sherd_merge(
        &(struct sherd_merge_desc){ .from = at("drift"), .to = at("drift-model"), .type = SHERD_F32 }, NULL));
    for (enum way_in way = RESUMES; way <= IMPORTS; way++) {
        struct drift drift[WORLD] = { { .way = way }, { .way = way } };
        t_ranks(WORLD, T_THREADS, resume_and_drift, drift);
        for (int r = 0; r < WORLD; r++)
            assert_int_equal(drift[r].status, SHERD_EDIVERGED);
    }
    assert_true(has_step("drift", 9) && !file_exists(at("drift/damaged-step-00000009")));
    ASSERT_OK(file_remove_tree(at("drift")));
    ASSERT_OK(file_remove_tree(at("drift-model")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_at_the_start),
        cmocka_unit_test(beside_training_the_same_bytes),
        cmocka_unit_test(room_by_what_is_free),
        cmocka_unit_test(a_save_that_fails),
        cmocka_unit_test(a_failure_costs_no_later_step),
        cmocka_unit_test(a_run_keeps_what_it_was_told),
        cmocka_unit_test(a_stop_waits),
        cmocka_unit_test(a_stop_in_an_evaluation),
        cmocka_unit_test(a_taken_folder_is_refused),
        cmocka_unit_test(ranks_that_cannot_load_for_two_reasons),
        cmocka_unit_test(copies_that_drift_are_no_damaged_file),
    };
    return cmocka_run_group_tests(tests, train_enter, train_leave);
}

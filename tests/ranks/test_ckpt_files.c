/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Checkpoints that are damaged, half written, of another model or put aside: who is refused, with which
 * words, and which one is found and kept.
 */
#include "tests/t.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "tests/ranks/fake.h"

#define STEP "run/step-00000010"

static struct fake_results results;
static const struct fake_options plain;
static struct text said; /* by the log */

static void listen(void *ctx, enum sherd_log_level level, const char *line)
{
    (void)ctx;
    if (level <= SHERD_LOG_WARN)
        text_add(&said, "%s\n", line);
}

static void save(int64_t step)
{
    struct fake_options options = { .step = step };
    ASSERT_OK(fake_save(&results, 1, &options, fake_at("run")));
}

static void save_plain(int world)
{
    ASSERT_OK(fake_save(&results, world, &plain, fake_at("run")));
}

static void load_fails(const struct fake_options *options, int status, const char *text)
{
    ASSERT_FAILS(fake_load(&results, 2, options, fake_at(STEP), NULL), status, text);
    ASSERT_CONTAINS(sherd_error(), STEP);
    assert_int_not_equal(results.status[0], SHERD_OK);
    assert_int_not_equal(results.status[1], SHERD_OK);
}

static void edit_manifest(const char *from, const char *to)
{
    char *text;
    const char *path = fake_at(STEP "/manifest.json");
    ASSERT_OK(file_read_text(&text, NULL, path, 1 << 20));
    char *at = strstr(text, from);
    assert_non_null(at);
    strstr(text, "\"sum\": ")[1] = 'S'; /* by hand and on purpose */
    char *edited = mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ASSERT_OK(file_write_atomic(path, edited, strlen(edited)));
    mem_free(edited);
    mem_free(text);
}

static void another_model_is_refused(void **state)
{
    (void)state;
    const struct fake_options missing = { .missing = 1 }, extra = { .extra = 1 }, shape = { .vocab = 102 },
                              untied = { .untied = 1 }, no_alias = { .no_alias = 1 };
    save_plain(3);
    load_fails(&missing, SHERD_EFORMAT, "has 1 tensor that this model lacks, the first is 'h.1.big.weight'");
    load_fails(&extra, SHERD_EFORMAT, "tensor 'more.weight' of this model is missing in the checkpoint");
    load_fails(&shape, SHERD_EFORMAT,
        "tensor 'wte.weight' has shape [101, 24] in the checkpoint and [102, 24] in this model");
    load_fails(&untied, SHERD_EFORMAT,
        "tensor 'wte.weight' is tied to 'lm_head.weight' in the checkpoint, but not tied in this model");
    load_fails(&no_alias, SHERD_EFORMAT, "'wte.weight' is tied to 'lm_head.weight' in the checkpoint");
    ASSERT_OK(fake_load(&results, 2, &plain, fake_at(STEP), NULL));
}

static void a_changed_tie_is_refused_both_ways(void **state)
{
    (void)state;
    const struct fake_options untied = { .untied = 1 };
    ASSERT_OK(fake_save(&results, 2, &untied, fake_at("run")));
    load_fails(&plain, SHERD_EFORMAT,
        "tensor 'wte.weight' is tied to 'lm_head.weight' in this model, but not in the "
        "checkpoint");
    ASSERT_OK(fake_load(&results, 3, &untied, fake_at(STEP), NULL));
}

static void another_optimizer_is_refused(void **state)
{
    (void)state;
    const struct fake_options sgd = { .sgd = 1 };
    save_plain(2);
    load_fails(
        &sgd, SHERD_EFORMAT, "the checkpoint has optimizer state 'adam.m' (of tensor 'scale' and others)");
    ASSERT_CONTAINS(sherd_error(), "written with adamw");
    ASSERT_OK(fake_save(&results, 2, &sgd, fake_at("sgd")));
    ASSERT_FAILS(fake_load(&results, 2, &plain, fake_at("sgd/step-00000010"), NULL), SHERD_EFORMAT,
        "optimizer state 'adam.m' (of tensor 'scale' and others) is missing");
    ASSERT_CONTAINS(sherd_error(), "written with sgd");
}

static void a_truncated_file_is_refused(void **state)
{
    (void)state;
    const char *path = fake_at(STEP "/weights-00001-of-00003.safetensors");
    uint64_t bytes;
    save_plain(3);
    ASSERT_OK(file_size(&bytes, path));
    assert_int_equal(truncate(path, (off_t)bytes - 4), 0);
    load_fails(&plain, SHERD_EFORMAT, "weights-00001-of-00003.safetensors has");
    ASSERT_CONTAINS(sherd_error(), "it is cut off");
    assert_int_equal(truncate(path, (off_t)bytes + 4), 0);
    load_fails(&plain, SHERD_EFORMAT, "not the file that was saved");
    assert_int_equal(unlink(path), 0);
    load_fails(&plain, SHERD_ENOTFOUND,
        "weights-00001-of-00003.safetensors is missing (rank 1's weights of step 10)");
    assert_int_equal(unlink(fake_at(STEP "/manifest.json")), 0);
    load_fails(&plain, SHERD_ENOTFOUND, "no manifest.json");
    ASSERT_FAILS(fake_load(&results, 2, &plain, fake_at("none"), NULL), SHERD_ENOTFOUND,
        "none: there is no such folder");
}

static void a_wrong_header_is_refused(void **state)
{
    (void)state;
    const char *path = fake_at(STEP "/states-00000-of-00002.safetensors");
    save_plain(2);
    t_flip(path, 9);
    load_fails(&plain, SHERD_ECORRUPT, "states-00000-of-00002.safetensors");
    t_flip(path, 9);
    t_flip(path, 7);
    load_fails(&plain, SHERD_ECORRUPT, "above the limit");
    t_flip(path, 7);
    ASSERT_OK(fake_load(&results, 2, &plain, fake_at(STEP), NULL));
    edit_manifest("[1,", "[0,");
    load_fails(&plain, SHERD_ECORRUPT, "tensor '");
}

static void a_file_of_another_save_is_refused(void **state)
{
    (void)state;
    const struct fake_options later = { .step = 20 };
    save_plain(2);
    ASSERT_OK(fake_save(&results, 2, &later, fake_at("run")));
    const char *name = "weights-00001-of-00002.safetensors";
    ASSERT_OK(file_rename(fake_at("run/step-00000020/%s", name), fake_at(STEP "/%s", name)));
    load_fails(&plain, SHERD_ECORRUPT, "says step 20, the manifest says 10: the file is from another save");
}

static void verify_finds_one_bit(void **state)
{
    (void)state;
    struct sherd_ckpt *ckpt;
    uint64_t bytes;
    const char *path = fake_at(STEP "/states-00001-of-00002.safetensors");
    save_plain(2);
    ASSERT_OK(file_size(&bytes, path));
    ASSERT_OK(sherd_ckpt_open(&ckpt, fake_at(STEP)));
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    t_flip(path, bytes - 1);
    ASSERT_FAILS(sherd_ckpt_verify(ckpt), SHERD_ECORRUPT, path);
    t_flip(path, bytes - 1);
    t_flip(path, 20);
    ASSERT_FAILS(sherd_ckpt_verify(ckpt), SHERD_ECORRUPT, path);
    t_flip(path, 20);
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    sherd_ckpt_close(ckpt);
}

static void assert_finds(const char *where, const char *want)
{
    char *path;
    ASSERT_OK(sherd_ckpt_find(&path, fake_at("%s", where)));
    assert_string_equal(path, fake_at("%s", want));
    mem_free(path);
}

static void find_fails(const char *where, const char *text)
{
    char *path;
    ASSERT_FAILS(sherd_ckpt_find(&path, fake_at("%s", where)), SHERD_ENOTFOUND, text);
    assert_null(path);
}

static void finds_the_newest_complete_one(void **state)
{
    (void)state;
    find_fails("run", "there is no such folder");
    ASSERT_OK(file_mkdirs(fake_at("run")));
    find_fails("run", "no checkpoint (looked for");
    save(100);
    save(9);
    save(1000);
    ASSERT_OK(file_mkdirs(fake_at("run/step-00002000")));
    ASSERT_OK(file_mkdirs(fake_at("run/.tmp-step-00003000-0011223344556677")));
    ASSERT_OK(file_mkdirs(fake_at("run/step-4000")));
    ASSERT_OK(file_mkdirs(fake_at("run/step-000000005000")));
    ASSERT_OK(file_mkdirs(fake_at("run/step-00006000.bak")));
    assert_finds("run", "run/step-00001000");
    assert_finds("run/", "run/step-00001000");
    ASSERT_CONTAINS(said.data, "run/step-00002000: ");
    ASSERT_CONTAINS(said.data, "no manifest.json");
    assert_null(strstr(said.data, "3000"));
    assert_null(strstr(said.data, "4000"));
    assert_int_equal(unlink(fake_at("run/step-00001000/states-00000-of-00001.safetensors")), 0);
    assert_finds("run", "run/step-00000100");
    ASSERT_CONTAINS(said.data, "states-00000-of-00001.safetensors is missing");
    assert_finds("run/step-00000009", "run/step-00000009");
    find_fails("run/step-00001000", "is missing");
    find_fails("run/step-00002000", "no manifest.json");
    /* the pointer is not trusted */
    ASSERT_OK(file_write_atomic(fake_at("run/latest"), "step-00000009\n", 14));
    assert_finds("run", "run/step-00000100");
    ASSERT_OK(file_rename(fake_at("run/step-00000009"), fake_at("moved")));
    assert_finds("moved", "moved");
    ASSERT_OK(file_rename(fake_at("moved"), fake_at("run/step-00000500")));
    assert_finds("run", "run/step-00000100");
    ASSERT_CONTAINS(said.data, "its manifest is that of step 9");
    ASSERT_OK(file_remove_tree(fake_at("run/step-00000100")));
    char *path;
    ASSERT_FAILS(
        sherd_ckpt_find(&path, fake_at("run")), SHERD_ECORRUPT, "none of its 3 checkpoints is complete");
}

/* Neither passed over for an older one nor replaced. */
static void a_newer_version_is_not_passed_over(void **state)
{
    (void)state;
    char *path;
    save(9);
    save(10);
    edit_manifest("\"version\": 2", "\"version\": 3");
    ASSERT_FAILS(sherd_ckpt_find(&path, fake_at("run")), SHERD_EUNSUPPORTED, "format version 3");
    ASSERT_FAILS(fake_save(&results, 2, &plain, fake_at("run")), SHERD_EUNSUPPORTED, "format version 3");
    assert_true(file_exists(fake_at(STEP "/manifest.json")));
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 1 }, 0));
    assert_true(file_exists(fake_at(STEP "/manifest.json")));
}

/* The names in run/, joined with spaces. */
static void assert_steps(const char *want)
{
    char **names;
    int n;
    struct text t = { 0 };
    ASSERT_OK(file_list(&names, &n, fake_at("run")));
    for (int i = 0; i < n; i++)
        text_add(&t, "%s ", names[i]);
    file_list_free(names, n);
    assert_string_equal(t.data ? t.data : "", want);
    text_finish(&t);
}

/* What lacks a file can be mended: it is renamed, not replaced, and no rotation removes it. */
static void what_is_not_complete_is_put_aside(void **state)
{
    (void)state;
    static const int64_t steps[] = { 8, 9, 10, 11 };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        save(steps[i]);
    assert_int_equal(unlink(fake_at("run/step-00000008/manifest.json")), 0);
    assert_int_equal(unlink(fake_at("run/step-00000011/states-00000-of-00001.safetensors")), 0);
    assert_int_equal(truncate(fake_at("run/step-00000010/weights-00000-of-00001.safetensors"), 9), 0);
    char dir[256];
    snprintf(dir, sizeof(dir), "%s", fake_at("run"));
    ASSERT_OK(ckpt_put_passed_aside(dir, fake_at("run/step-00000009")));
    ASSERT_OK(ckpt_put_passed_aside(dir, fake_at("run/step-00000009")));
    assert_steps("damaged-step-00000010 damaged-step-00000011 latest step-00000008 step-00000009 ");
    save(8);
    ASSERT_CONTAINS(said.data, "run/step-00000008 is not complete: ");
    ASSERT_CONTAINS(said.data, "run/damaged-step-00000008 now, and may be removed");
    ASSERT_OK(ckpt_rotate(dir, &(struct ckpt_keep){ .newest = 1 }, 0));
    assert_steps("damaged-step-00000008 damaged-step-00000010 damaged-step-00000011 latest step-00000009 ");
}

/* A run may be called like one of its steps. */
static void a_run_called_like_a_step(void **state)
{
    (void)state;
    const struct fake_options options = { .missing = 1, .step = 8 };
    char *path;
    ASSERT_FAILS(sherd_ckpt_find(&path, fake_at("step-00000005")), SHERD_ENOTFOUND, "no such folder");
    ASSERT_OK(fake_save(&results, 1, &options, fake_at("step-00000005")));
    assert_finds("step-00000005", "step-00000005/step-00000008");
    assert_finds("step-00000005/step-00000008", "step-00000005/step-00000008");
    ASSERT_OK(file_remove_tree(fake_at("step-00000005/step-00000008")));
    ASSERT_FAILS(sherd_ckpt_find(&path, fake_at("step-00000005")), SHERD_ENOTFOUND, "no manifest.json");
}

/* A manifest that cannot be looked at may be as good as new: its checkpoint is not called broken. */
static void what_cannot_be_looked_at_stays(void **state)
{
    (void)state;
    char dir[256], *path;
    save(8);
    save(9);
    snprintf(dir, sizeof(dir), "%s", fake_at("run"));
    ASSERT_OK(file_rename(fake_at("run/step-00000009/manifest.json"), fake_at("kept")));
    assert_int_equal(symlink("manifest.json", fake_at("run/step-00000009/manifest.json")), 0);
    ASSERT_FAILS(sherd_ckpt_find(&path, dir), SHERD_EIO, "step-00000009/manifest.json'");
    ASSERT_OK(ckpt_put_passed_aside(dir, fake_at("run/step-00000008")));
    const struct fake_options again = { .missing = 1, .step = 9 };
    ASSERT_FAILS(fake_save(&results, 1, &again, dir), SHERD_EIO, "step-00000009/manifest.json'");
    assert_steps("latest step-00000008 step-00000009 ");
    ASSERT_OK(file_rename(fake_at("kept"), fake_at("run/step-00000009/manifest.json")));
    assert_finds("run", "run/step-00000009");
}

static void rotation_goes_by_number(void **state)
{
    (void)state;
    static const int64_t steps[] = { 1000, 9, 100, 10, 99 };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        save(steps[i]);
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 0 }, 0));
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 5 }, 0));
    assert_steps("latest step-00000009 step-00000010 step-00000099 step-00000100 step-00001000 ");
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 3 }, 0));
    assert_steps("latest step-00000099 step-00000100 step-00001000 ");
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 1 }, 0));
    assert_steps("latest step-00001000 ");
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 1 }, 0));
    assert_steps("latest step-00001000 ");
    ASSERT_FAILS(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = -1 }, 0), SHERD_EINVAL, "-1");
}

static void save_as(int64_t step, uint64_t run, double loss, int infinite)
{
    struct fake_options options = {
        .step = step, .run = run, .loss = loss, .infinite = infinite, .missing = 1
    };
    ASSERT_OK(fake_save(&results, 1, &options, fake_at("run")));
}

static void rotate(int64_t newest, int64_t every, int64_t best, uint64_t run)
{
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ newest, every, best }, run));
}

/* Steps that would be taken for one another if names were sorted as texts, and the best one anywhere. */
static void what_is_kept_beside_the_newest(void **state)
{
    (void)state;
    static const int64_t steps[] = { 9, 10, 99, 100, 1000, 123456789 };
    static const struct {
        double loss[6];
        struct ckpt_keep keep;
        const char *left;
    } cases[] = {
        { { 0 }, { 3, 0, 0 }, "step-00000100 step-00001000 step-123456789 " },
        { { 0 }, { 1, 0, 0 }, "step-123456789 " },
        { { 0 }, { 1, 10, 0 }, "step-00000010 step-00000100 step-00001000 step-123456789 " },
        { { 1, 2, 3, 4, 5, 6 }, { 1, 0, 1 }, "step-00000009 step-123456789 " },
        { { 6, 5, 4, 3, 2, 1 }, { 1, 0, 1 }, "step-123456789 " },
        { { 6, 5, 4, 3, 2, 1 }, { 1, 0, 2 }, "step-00001000 step-123456789 " },
        { { 2, 2, 2, 3, 3, 3 }, { 1, 0, 1 }, "step-00000099 step-123456789 " },
        { { 0, 7, 0, 9, 0, 0 }, { 1, 0, 5 }, "step-00000010 step-00000100 step-123456789 " },
        { { 9, 1, 0, 0, 0, 0 }, { 1, 99, 1 }, "step-00000010 step-00000099 step-123456789 " },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < ARRAY_LEN(steps); k++)
            save_as(steps[k], 7, cases[i].loss[k], 0);
        ASSERT_OK(file_remove_tree(fake_at("run/latest")));
        ASSERT_OK(ckpt_rotate(fake_at("run"), &cases[i].keep, 7));
        assert_steps(cases[i].left);
        ASSERT_OK(file_remove_tree(fake_at("run")));
    }
}

static void other_runs_stay(void **state)
{
    (void)state;
    save_as(5, 1, 0, 0);
    save_as(6, 0, 0, 0); /* of a run that is not known: counts as ours */
    save_as(7, 2, 0, 0);
    save_as(8, 2, 0, 0);
    rotate(1, 0, 0, 2);
    assert_steps("latest step-00000005 step-00000008 ");
    struct fake_options ours = { .step = 5, .run = 2, .missing = 1 };
    ASSERT_FAILS(fake_save(&results, 1, &ours, fake_at("run")), SHERD_EEXISTS, "another run");
    assert_steps("latest step-00000005 step-00000008 ");
}

/* Garbage never drives out what is sound, and is not resumed from by itself. */
static void values_that_are_no_numbers(void **state)
{
    (void)state;
    char *path;
    save_as(10, 1, 2.0, 0);
    save_as(11, 1, 0.5, 1);
    ASSERT_CONTAINS(said.data, "h.0.q.weight has values that are infinite or not a number");
    save_as(12, 1, 0.4, 1);
    rotate(1, 0, 1, 1);
    assert_steps("latest step-00000010 step-00000012 ");
    ASSERT_OK(sherd_ckpt_find(&path, fake_at("run")));
    assert_string_equal(path, fake_at("run/step-00000010"));
    mem_free(path);
    ASSERT_CONTAINS(said.data, "run/step-00000012: it holds values that are infinite");
    ASSERT_OK(sherd_ckpt_find(&path, fake_at("run/step-00000012"))); /* asked for by name */
    mem_free(path);
    ASSERT_OK(file_remove_tree(fake_at("run/step-00000010")));
    ASSERT_FAILS(sherd_ckpt_find(&path, fake_at("run")), SHERD_ECORRUPT, "none of its 1 checkpoints");
}

/* It was passed over, but is not lost: neither where a run goes on before it nor where a save finds it. */
static void values_that_are_no_numbers_are_put_aside(void **state)
{
    (void)state;
    char dir[256];
    snprintf(dir, sizeof(dir), "%s", fake_at("run"));
    save_as(10, 1, 0, 1);
    save_as(11, 1, 0, 0);
    save_as(12, 1, 0, 1);
    ASSERT_OK(ckpt_put_passed_aside(dir, fake_at("run/step-00000011")));
    assert_steps("damaged-step-00000012 latest step-00000010 step-00000011 ");
    save_as(10, 1, 0, 0);
    ASSERT_CONTAINS(said.data, "run/damaged-step-00000010 now, and may be removed");
    save_as(11, 1, 0, 0); /* nothing is wrong with it: replaced */
    rotate(1, 0, 0, 1);
    assert_steps("damaged-step-00000010 damaged-step-00000012 latest step-00000011 ");
}

static void rotation_counts_only_complete_ones(void **state)
{
    (void)state;
    save(1);
    save(2);
    save(3);
    assert_int_equal(unlink(fake_at("run/step-00000003/manifest.json")), 0);
    ASSERT_OK(file_mkdirs(fake_at("run/.tmp-step-00000004-0011223344556677")));
    ASSERT_OK(file_write_atomic(fake_at("run/.tmp-step-00000004-0011223344556677/x"), "x", 1));
    ASSERT_OK(file_mkdirs(fake_at("run/other")));
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 1 }, 0));
    assert_steps("latest other step-00000002 step-00000003 ");
    ASSERT_CONTAINS(said.data, "step-00000003 is no complete checkpoint and stays");
}

static void what_was_put_aside_comes_back(void **state)
{
    (void)state;
    static const char aside[] = "run/.old-step-00000002-0011223344556677";
    save(1);
    save(2);
    ASSERT_OK(file_rename(fake_at("run/step-00000002"), fake_at("%s", aside)));
    assert_finds("run", aside);
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 2 }, 0));
    assert_steps("latest step-00000001 step-00000002 ");
    assert_finds("run", "run/step-00000002");
    /* with its successor in place it goes */
    ASSERT_OK(file_rename(fake_at("run/step-00000002"), fake_at("%s", aside)));
    save(2);
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 0 }, 0));
    assert_steps("latest step-00000001 step-00000002 ");
    /* unless the successor is broken */
    ASSERT_OK(file_rename(fake_at("run/step-00000002"), fake_at("%s", aside)));
    ASSERT_OK(file_mkdirs(fake_at("run/step-00000002")));
    ASSERT_OK(ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 0 }, 0));
    assert_steps("latest step-00000001 step-00000002 ");
    assert_finds("run", "run/step-00000002");
}

/* With allocation k failing; *made is how many there were. */
static int try_save(int64_t k, uint64_t *made)
{
    const struct fake_options options = { .fail_at = k };
    int st = fake_save(&results, 1, &options, fake_at("run"));
    *made = results.allocations;
    return st;
}

static int try_save_beside(int64_t k, uint64_t *made)
{
    const struct fake_options options = { .fail_at = k, .beside = 1 };
    int st = fake_save(&results, 1, &options, fake_at("run"));
    *made = results.allocations;
    return st;
}

static int try_load(int64_t k, uint64_t *made)
{
    const struct fake_options options = { .fail_at = k };
    int st = fake_load(&results, 1, &options, fake_at(STEP), NULL);
    *made = results.allocations;
    return st;
}

static int try_merge(int64_t k, uint64_t *made)
{
    struct sherd_merge_desc desc = {
        .from = fake_at("run"), .to = fake_at("m"), .shard_bytes = 10000, .overwrite = 1
    };
    uint64_t before = mem_count();
    mem_fail_at(k);
    int st = sherd_merge(&desc, NULL);
    mem_fail_at(0);
    *made = mem_count() - before;
    return st;
}

static int try_rotate(int64_t k, uint64_t *made)
{
    uint64_t before = mem_count();
    mem_fail_at(k);
    int st = ckpt_rotate(fake_at("run"), &(struct ckpt_keep){ .newest = 1 }, 0);
    mem_fail_at(0);
    *made = mem_count() - before;
    return st;
}

/* Each allocation in turn fails: an error, no crash, nothing lost; and the checkpoint is as it was. Standard
 * input, whose number is 0 as that of a descriptor that was not opened, is left alone. */
static void any_allocation_may_fail(void **state)
{
    (void)state;
    int (*const tries[])(
        int64_t, uint64_t *) = { try_save, try_save_beside, try_load, try_merge, try_rotate };
    int input = fcntl(STDIN_FILENO, F_GETFD);
    save_plain(1);
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        int64_t k = 0;
        uint64_t made;
        do {
            int st = tries[i](++k, &made);
            if (st != SHERD_OK && st != SHERD_ENOMEM)
                fail_msg("allocation %lld of try %zu: %s", (long long)k, i, sherd_error());
        } while ((uint64_t)k <= made);
        assert_true(k > 10);
        assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), input);
        ASSERT_OK(fake_load(&results, 1, &plain, fake_at(STEP), NULL));
    }
    assert_steps("latest step-00000010 ");
}

static int start(void **state)
{
    text_finish(&said);
    said = (struct text){ 0 };
    sherd_log_set(listen, NULL, SHERD_LOG_WARN);
    return fake_fresh(state);
}

static int stop(void **state)
{
    (void)state;
    text_finish(&said);
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(another_model_is_refused),
        TEST(a_changed_tie_is_refused_both_ways),
        TEST(another_optimizer_is_refused),
        TEST(a_truncated_file_is_refused),
        TEST(a_wrong_header_is_refused),
        TEST(a_file_of_another_save_is_refused),
        TEST(verify_finds_one_bit),
        TEST(finds_the_newest_complete_one),
        TEST(a_newer_version_is_not_passed_over),
        TEST(what_is_not_complete_is_put_aside),
        TEST(a_run_called_like_a_step),
        TEST(what_cannot_be_looked_at_stays),
        TEST(rotation_goes_by_number),
        TEST(what_is_kept_beside_the_newest),
        TEST(other_runs_stay),
        TEST(values_that_are_no_numbers),
        TEST(values_that_are_no_numbers_are_put_aside),
        TEST(rotation_counts_only_complete_ones),
        TEST(what_was_put_aside_comes_back),
        TEST(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, fake_enter, fake_leave);
}

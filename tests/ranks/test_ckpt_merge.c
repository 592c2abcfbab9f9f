/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Merging: values, types, files and index, ties, targets, sources, and the room it takes.
 */
#include "tests/check.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/mem.h"
#include "ckpt/open.h"
#include "tests/ranks/fake.h"

static struct fake_results results;
static const struct fake_options plain;

static void read_header(struct st_header *h, const char *path)
{
    int fd;
    ASSERT_OK(file_open_read(&fd, path));
    ASSERT_OK(st_read(h, fd, path));
    ASSERT_OK(file_close(fd, path));
}

/* Every element of an entry of a merged file. */
static void assert_values(
    const struct st_header *h, const char *path, const char *entry, const char *tensor, int frozen)
{
    const struct st_entry *e = st_find(h, entry);
    char *bytes;
    size_t n;
    assert_non_null(e);
    ASSERT_OK(file_read_text(&bytes, &n, path, 1 << 24));
    for (int64_t i = 0; i < e->elems; i++) {
        float want = fake_value(&plain, "weight", tensor, i), is;
        size_t size = sherd_dtype_bytes(e->type);
        if (frozen)
            want = bf16_to_float(bf16_from_float(want));
        uint8_t there[4];
        st_convert(there, e->type, &want, SHERD_F32, 1, NULL);
        assert_memory_equal(there, bytes + e->begin + (size_t)i * size, size);
        st_convert(&is, SHERD_F32, there, e->type, 1, NULL);
        assert_true(is > want - 0.01f && is < want + 0.01f);
    }
    mem_free(bytes);
}

static void merged_values_are_the_saved_ones(void **state)
{
    (void)state;
    static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F16, SHERD_DTYPE_NONE };
    static const char *const torch[] = { "float32", "bfloat16", "float16", "bfloat16" };
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("run")));
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m%zu", i), .type = types[i] };
        struct sherd_merge_result r;
        struct st_header h;
        uint64_t bytes;
        json_t *config;
        const char *dtype;
        ASSERT_OK(sherd_merge(&desc, &r));
        const char *path = fake_at("m%zu/model.safetensors", i);
        ASSERT_OK(file_size(&bytes, path));
        assert_int_equal(r.files, 1);
        assert_int_equal(r.tensors, 18);
        assert_int_equal(r.bytes, bytes);
        read_header(&h, path);
        assert_int_equal(h.n, 18);
        assert_string_equal(st_meta_find(&h, "format"), "pt");
        assert_int_equal(h.n_meta, 1);
        assert_null(st_find(&h, "lm_head.weight"));
        int64_t params = 0;
        for (int k = 0; k < h.n; k++) {
            assert_int_equal(h.entries[k].type, types[i] ? types[i] : SHERD_BF16);
            params += h.entries[k].elems;
        }
        assert_int_equal(r.params, params);
        assert_string_equal(h.entries[0].name, "scale");
        assert_string_equal(h.entries[17].name, "still.b");
        assert_int_equal(st_find(&h, "still.b")->dims, 4);
        assert_values(&h, path, "h.1.big.weight", "h.1.big.weight", 0);
        assert_values(&h, path, "h.0.k.weight", "h.0.k.weight", 0);
        assert_values(&h, path, "wte.weight", "wte.weight", 0);
        assert_values(&h, path, "still.b", "still.b", 1);
        st_finish(&h);
        ASSERT_OK(json_parse_file(&config, fake_at("m%zu/config.json", i), 10000));
        ASSERT_OK(json_get_text(config, "torch_dtype", "config", &dtype));
        assert_string_equal(dtype, torch[i]);
        assert_int_equal(json_integer_value(json_object_get(config, "n_embd")), 24);
        json_decref(config);
        assert_false(file_exists(fake_at("m%zu/model.safetensors.index.json", i)));
        assert_false(file_exists(fake_at("m%zu/.tmp-merge", i)));
    }
}

static void an_alias_is_written_when_asked_for(void **state)
{
    (void)state;
    struct st_header h;
    struct sherd_merge_result r;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m"), .aliases = 1 };
    ASSERT_OK(sherd_merge(&desc, &r));
    assert_int_equal(r.tensors, 19);
    const char *path = fake_at("m/model.safetensors");
    read_header(&h, path);
    assert_values(&h, path, "wte.weight", "wte.weight", 0);
    assert_values(&h, path, "lm_head.weight", "wte.weight", 0);
    st_finish(&h);
}

/* In F32: wte 9696, big 49200, q 2304, the rest below 800 bytes each. */
static void files_are_cut_in_order(void **state)
{
    (void)state;
    struct sherd_merge_result r;
    struct st_header h;
    json_t *index, *map, *meta;
    const char *file;
    int64_t total, sum = 0;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    struct sherd_merge_desc desc = {
        .from = fake_at("run"), .to = fake_at("m"), .type = SHERD_F32, .shard_bytes = 10000
    };
    ASSERT_OK(sherd_merge(&desc, &r));
    assert_int_equal(r.files, 3);
    ASSERT_OK(json_parse_file(&index, fake_at("m/model.safetensors.index.json"), 100000));
    ASSERT_OK(json_get_object(index, "weight_map", "index", &map));
    ASSERT_OK(json_get_object(index, "metadata", "index", &meta));
    ASSERT_OK(json_get_int(meta, "total_size", 0, INT64_MAX, "index", &total));
    assert_int_equal(json_object_size(map), 18);
    static const struct {
        const char *name, *file;
    } want[] = {
        { "scale", "model-00001-of-00003.safetensors" },
        { "wte.weight", "model-00001-of-00003.safetensors" },
        { "wpe.weight", "model-00003-of-00003.safetensors" },
        { "h.0.one", "model-00003-of-00003.safetensors" },
        { "h.1.big.weight",
            "model-00002-of-00003.safetensors" }, /* above the limit: before the one being filled */
        { "h.1.a", "model-00003-of-00003.safetensors" },
        { "still.b", "model-00003-of-00003.safetensors" },
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        ASSERT_OK(json_get_text(map, want[i].name, "map", &file));
        assert_string_equal(file, want[i].file);
    }
    const char *before = "", *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        assert_true(strcmp(before, name) < 0);
        before = name;
    }
    for (int i = 1; i <= 3; i++) {
        const char *path = fake_at("m/model-0000%d-of-00003.safetensors", i);
        read_header(&h, path);
        for (int k = 0; k < h.n; k++) {
            const struct st_entry *e = &h.entries[k];
            sum += (int64_t)(e->end - e->begin);
            ASSERT_OK(json_get_text(map, e->name, "map", &file));
            assert_non_null(strstr(path, file));
        }
        st_finish(&h);
    }
    assert_int_equal(sum, total);
    json_decref(index);
    desc.shard_bytes = 1;
    desc.to = fake_at("each");
    ASSERT_OK(sherd_merge(&desc, &r));
    assert_int_equal(r.files, 18);
    assert_true(file_exists(fake_at("each/model-00018-of-00018.safetensors")));
}

static void a_model_is_not_overwritten_unasked(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    struct sherd_merge_desc desc = {
        .from = fake_at("run"), .to = fake_at("m"), .type = SHERD_F32, .shard_bytes = 10000
    };
    ASSERT_OK(file_mkdirs(fake_at("m")));
    ASSERT_OK(file_write_atomic(fake_at("m/tokenizer.json"), "{}", 2));
    ASSERT_OK(sherd_merge(&desc, NULL));
    desc.shard_bytes = 0;
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EEXISTS, "m already holds a model (");
    desc.overwrite = 1;
    ASSERT_OK(file_mkdirs(fake_at("m/.tmp-merge/left"))); /* by a merge that died */
    ASSERT_OK(sherd_merge(&desc, NULL));
    char **names;
    int n;
    static const char *const want[] = { "config.json", "model.safetensors", "tokenizer.json" };
    ASSERT_OK(file_list(&names, &n, fake_at("m")));
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_list_free(names, n);
}

static void a_model_does_not_come_among_checkpoints(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    char *path;
    struct sherd_merge_desc desc = { .type = SHERD_F32 };
    for (int i = 0; i < 2; i++, desc.overwrite = 1) {
        desc.from = desc.to = fake_at("run");
        ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EEXISTS, "run holds the checkpoints of a run (step-");
        ASSERT_OK(sherd_ckpt_find(&path, fake_at("run")));
        desc.to = path;
        ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EEXISTS, "holds a checkpoint (manifest.json)");
        mem_free(path);
    }
    assert_false(file_exists(fake_at("run/config.json")));
    ASSERT_OK(file_write_atomic(fake_at("file"), "{}", 2));
    desc.from = fake_at("run");
    desc.to = fake_at("file");
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EEXISTS, "file is a file: name a folder");
}

/* The errno of the next exchange of folders; and a path to which the next rename fails. */
static int exchange_errno;
static const char *no_rename;

static int fail_exchange(const char *call, const char *path, size_t *bytes)
{
    (void)bytes;
    if (no_rename && !strcmp(call, "rename") && !strcmp(path, no_rename)) {
        no_rename = NULL;
        return EIO;
    }
    int links = exchange_errno == ENOSYS && !strcmp(call, "link"); /* a poor file system has no links, too */
    return links || !strcmp(call, "exchange") ? exchange_errno : 0;
}

static void names_are(const char *dir, const char *const *want, int n_want)
{
    char **names;
    int n;
    ASSERT_OK(file_list(&names, &n, dir));
    assert_int_equal(n, n_want);
    for (int i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_list_free(names, n);
}

/* At every moment there is one whole model: the old one stays if the exchange fails. */
static void an_old_model_stays_until_the_new_one_is_whole(void **state)
{
    (void)state;
    static const char *const old[] = { "config.json", "model.safetensors", "tokenizer.json" };
    static const char *const all[] = { "config.json", "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
        "model.safetensors.index.json", "tokenizer.json" };
    static const char *const alone[] = { "m" };
    uint64_t before, after;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    char from[256], to[256];
    snprintf(from, sizeof(from), "%s", fake_at("run"));
    snprintf(to, sizeof(to), "%s", fake_at("x/m"));
    struct sherd_merge_desc desc = { .from = from, .to = to, .type = SHERD_F32 };
    ASSERT_OK(sherd_merge(&desc, NULL));
    ASSERT_OK(file_write_atomic(fake_at("x/m/tokenizer.json"), "{}", 2));
    ASSERT_OK(file_size(&before, fake_at("x/m/model.safetensors")));
    ASSERT_OK(file_mkdirs(fake_at("x/.tmp-merge-m/left"))); /* by a merge that died */
    desc.overwrite = 1;
    desc.shard_bytes = 10000;
    exchange_errno = EBUSY;
    file_hook(fail_exchange);
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EIO, "cannot be replaced");
    names_are(fake_at("x/m"), old, 3);
    ASSERT_OK(file_size(&after, fake_at("x/m/model.safetensors")));
    assert_int_equal(before, after);
    names_are(fake_at("x"), alone, 1);
    exchange_errno = ENOSYS; /* then by two renames, and copies */
    no_rename = to;
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EIO, "x/m': Input/output error");
    assert_null(no_rename);
    names_are(fake_at("x/m"), old, 3);
    names_are(fake_at("x"), alone, 1);
    ASSERT_OK(sherd_merge(&desc, NULL));
    file_hook(NULL);
    names_are(fake_at("x/m"), all, 6);
    names_are(fake_at("x"), alone, 1);
    desc.shard_bytes = 0;
    ASSERT_OK(sherd_merge(&desc, NULL));
    names_are(fake_at("x/m"), old, 3);
    ASSERT_OK(file_mkdirs(fake_at("x/m/notes")));
    ASSERT_FAILS(
        sherd_merge(&desc, NULL), SHERD_EEXISTS, "notes: a folder that holds folders is not replaced");
    names_are(fake_at("x"), alone, 1);
}

/* A changed byte of a weight is found while merging, and nothing is left of the target. */
static void a_changed_byte_stops_a_merge(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    FILE *f = fopen(fake_at("run/step-00000010/weights-00001-of-00002.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -9, SEEK_END), 0);
    int was = fgetc(f);
    assert_int_equal(fseek(f, -9, SEEK_END), 0);
    assert_true(fputc(was ^ 1, f) >= 0 && fclose(f) == 0);
    struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m") };
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ECORRUPT, "weights-00001-of-00002.safetensors: bytes");
    assert_false(file_exists(fake_at("m")));
    ASSERT_OK(file_mkdirs(fake_at("m")));
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ECORRUPT, "weights-00001-of-00002.safetensors: bytes");
    names_are(fake_at("m"), NULL, 0);
}

static void too_large_for_f16_is_an_error(void **state)
{
    (void)state;
    const struct fake_options big = { .big = 1 };
    ASSERT_OK(fake_save(&results, 2, &big, fake_at("run")));
    struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m"), .type = SHERD_F16 };
    ASSERT_FAILS(
        sherd_merge(&desc, NULL), SHERD_ENONFINITE, "tensor 'scale', element 0 is too large for f16");
    assert_false(file_exists(fake_at("m/model.safetensors")));
    assert_false(file_exists(fake_at("m/.tmp-merge")));
    desc.type = SHERD_BF16;
    ASSERT_OK(sherd_merge(&desc, NULL));
    desc.type = SHERD_I32;
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EINVAL, "i32 is none of");
}

static void the_source_may_be_moved_and_read_only(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    ASSERT_OK(file_rename(fake_at("run/step-00000010"), fake_at("elsewhere")));
    assert_int_equal(chmod(fake_at("elsewhere"), 0555), 0);
    struct sherd_merge_desc desc = {
        .from = fake_at("elsewhere"), .to = fake_at("a/b/m"), .type = SHERD_F32
    };
    ASSERT_OK(sherd_merge(&desc, NULL));
    assert_int_equal(chmod(fake_at("elsewhere"), 0755), 0);
    desc.from = fake_at("run");
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ENOTFOUND, "no checkpoint");
    desc.to = NULL;
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EINVAL, "needed");
}

/* Moments may be gone: a merge never opens their files, though they must be there with their size. */
static void moments_are_not_read(void **state)
{
    (void)state;
    uint64_t bytes;
    ASSERT_OK(fake_save(&results, 1, &plain, fake_at("run")));
    const char *path = fake_at("run/step-00000010/states-00000-of-00001.safetensors");
    ASSERT_OK(file_size(&bytes, path));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, (off_t)bytes), 0);
    struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m") };
    ASSERT_OK(sherd_merge(&desc, NULL));
}

static void a_missing_span_stops_before_writing(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    char *text;
    const char *path = fake_at("run/step-00000010/manifest.json");
    ASSERT_OK(file_read_text(&text, NULL, path, 1 << 20));
    char *big = strstr(strstr(text, "h.1.big.weight"), "[[0,0,");
    assert_non_null(big);
    big[2] = '1';
    strstr(text, "\"sum\": ")[1] = 'S'; /* by hand and on purpose */
    ASSERT_OK(file_write_atomic(path, text, strlen(text)));
    mem_free(text);
    struct sherd_merge_desc desc = { .from = fake_at("run"), .to = fake_at("m") };
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_EFORMAT, "tensor 'h.1.big.weight'");
    assert_false(file_exists(fake_at("m")));
}

static int full_from, writes;

static int full_disk(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    (void)bytes;
    int takes = !strcmp(call, "write") || !strcmp(call, "create") || !strcmp(call, "mkdir") ||
                !strcmp(call, "reserve");
    return takes && ++writes >= full_from ? ENOSPC : 0;
}

static void a_full_disk_leaves_nothing_of_a_merge(void **state)
{
    (void)state;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    char from[256], to[256];
    snprintf(from, sizeof(from), "%s", fake_at("run"));
    snprintf(to, sizeof(to), "%s", fake_at("x/m"));
    ASSERT_OK(file_mkdirs(fake_at("x")));
    struct sherd_merge_desc desc = { .from = from, .to = to, .type = SHERD_F32, .shard_bytes = 20000 };
    int st = SHERD_EIO;
    file_hook(full_disk);
    for (full_from = 1; full_from < 100 && st != SHERD_OK; full_from++) {
        writes = 0;
        st = sherd_merge(&desc, NULL);
        if (st == SHERD_OK)
            break;
        ASSERT_CONTAINS(sherd_error(), "No space left on device");
        assert_false(file_exists(to));
    }
    file_hook(NULL);
    ASSERT_OK(st);
    assert_true(full_from > 6); /* every call of it was refused once */
    assert_true(file_exists(fake_at("x/m/model.safetensors.index.json")));
}

static void what_is_no_whole_checkpoint_is_refused(void **state)
{
    (void)state;
    struct sherd_ckpt *ckpt;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    char step[256], to[256];
    snprintf(step, sizeof(step), "%s", fake_at("run/step-00000010"));
    snprintf(to, sizeof(to), "%s", fake_at("m"));
    struct sherd_merge_desc desc = { .from = step, .to = to, .type = SHERD_F32 };
    ASSERT_OK(file_remove_tree(fake_at("run/step-00000010/weights-00001-of-00002.safetensors")));
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ENOTFOUND, "weights-00001-of-00002.safetensors");
    int st = sherd_ckpt_open(&ckpt, step);
    if (st == SHERD_OK) {
        ASSERT_FAILS(sherd_ckpt_verify(ckpt), SHERD_ENOTFOUND, "weights-00001-of-00002.safetensors");
        sherd_ckpt_close(ckpt);
    }
    ASSERT_OK(file_remove_tree(fake_at("run/step-00000010/manifest.json")));
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ENOTFOUND, "was not finished");
    ASSERT_FAILS(sherd_ckpt_open(&ckpt, step), SHERD_ENOTFOUND, "was not finished");
    ASSERT_OK(file_rename(step, fake_at("run/.tmp-step-00000010-0011223344556677"))); /* being written */
    desc.from = fake_at("run/.tmp-step-00000010-0011223344556677");
    ASSERT_FAILS(sherd_merge(&desc, NULL), SHERD_ENOTFOUND, "no checkpoint");
    assert_false(file_exists(to));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(merged_values_are_the_saved_ones, fake_fresh),
        cmocka_unit_test_setup(an_alias_is_written_when_asked_for, fake_fresh),
        cmocka_unit_test_setup(files_are_cut_in_order, fake_fresh),
        cmocka_unit_test_setup(a_model_is_not_overwritten_unasked, fake_fresh),
        cmocka_unit_test_setup(a_model_does_not_come_among_checkpoints, fake_fresh),
        cmocka_unit_test_setup(an_old_model_stays_until_the_new_one_is_whole, fake_fresh),
        cmocka_unit_test_setup(a_changed_byte_stops_a_merge, fake_fresh),
        cmocka_unit_test_setup(too_large_for_f16_is_an_error, fake_fresh),
        cmocka_unit_test_setup(the_source_may_be_moved_and_read_only, fake_fresh),
        cmocka_unit_test_setup(moments_are_not_read, fake_fresh),
        cmocka_unit_test_setup(a_full_disk_leaves_nothing_of_a_merge, fake_fresh),
        cmocka_unit_test_setup(what_is_no_whole_checkpoint_is_refused, fake_fresh),
        cmocka_unit_test_setup(a_missing_span_stops_before_writing, fake_fresh),
    };
    return cmocka_run_group_tests(tests, fake_enter, fake_leave);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Checkpoints between worlds: save at W1, load at W2, save again; merges of both are equal to the byte. What
 * is read, converted, replaced and cleaned up on the way.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/mem.h"
#include "ckpt/open.h"
#include "tests/ranks/fake.h"

static struct fake_results results;

static void assert_same_file(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;
    ASSERT_OK(file_read_text(&x, &n, a, 1 << 24));
    ASSERT_OK(file_read_text(&y, &m, b, 1 << 24));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    mem_free(x);
    mem_free(y);
}

static void merge(const char *from, const char *to, enum sherd_dtype type)
{
    struct sherd_merge_desc desc = { .from = from, .to = to, .type = type };
    ASSERT_OK(sherd_merge(&desc, NULL));
}

static void any_world_to_any_world(void **state)
{
    (void)state;
    static const int worlds[] = { 1, 2, 3, 4, 8 };
    const struct fake_options plain = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++) {
        const char *from = fake_at("w%d", worlds[i]);
        ASSERT_OK(fake_save(&results, worlds[i], &plain, from));
        merge(from, fake_at("merged%d", worlds[i]), SHERD_F32);
        assert_same_file(
            fake_at("merged%d/model.safetensors", worlds[i]), fake_at("merged1/model.safetensors"));
        for (size_t k = 0; k < ARRAY_LEN(worlds); k++) {
            const char *to = fake_at("w%d-%d", worlds[i], worlds[k]);
            ASSERT_OK(fake_reload(&results, worlds[k], &plain, fake_at("w%d/step-00000010", worlds[i]), to));
            merge(to, fake_at("merged"), SHERD_F32);
            assert_same_file(fake_at("merged/model.safetensors"), fake_at("merged1/model.safetensors"));
            ASSERT_OK(file_remove_tree(fake_at("merged")));
            /* the same world writes the same bytes, whatever world it was loaded from */
            assert_same_file(fake_at("%s/step-00000010/manifest.json", strrchr(to, '/') + 1),
                worlds[k] <= worlds[i] ? fake_at("w%d/step-00000010/manifest.json", worlds[k])
                                       : fake_at("w%d-%d/step-00000010/manifest.json", worlds[i], worlds[k]));
        }
    }
}

/* 8.8 MB: more than what is copied, read or converted at once. */
static void tensors_above_the_buffers(void **state)
{
    (void)state;
    const struct fake_options large = { .large = 1 };
    ASSERT_OK(fake_save(&results, 1, &large, fake_at("a")));
    ASSERT_OK(fake_load(&results, 1, &large, fake_at("a/step-00000010"), NULL));
    ASSERT_OK(fake_save(&results, 2, &large, fake_at("b")));
    ASSERT_OK(fake_load(&results, 1, &large, fake_at("b/step-00000010"), NULL));
    merge(fake_at("a"), fake_at("a-merged"), SHERD_BF16);
    merge(fake_at("b"), fake_at("b-merged"), SHERD_BF16);
    assert_same_file(fake_at("a-merged/model.safetensors"), fake_at("b-merged/model.safetensors"));
    struct sherd_ckpt *ckpt;
    ASSERT_OK(sherd_ckpt_open(&ckpt, fake_at("b/step-00000010")));
    int i = manifest_find(&ckpt->manifest, "h.1.large");
    float last;
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    ASSERT_OK(sherd_ckpt_read(ckpt, "weight", i, 1100 * 2003 - 1, 1, &last));
    assert_true(last == fake_value(&large, "weight", "h.1.large", 1100 * 2003 - 1));
    sherd_ckpt_close(ckpt);
}

static void whole_views_write_the_same_weights(void **state)
{
    (void)state;
    const struct fake_options plain = { 0 }, whole = { .whole = 1 };
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("a")));
    ASSERT_OK(fake_save(&results, 3, &whole, fake_at("b")));
    for (int r = 0; r < 3; r++) {
        assert_same_file(fake_at("a/step-00000010/weights-0000%d-of-00003.safetensors", r),
            fake_at("b/step-00000010/weights-0000%d-of-00003.safetensors", r));
        assert_same_file(fake_at("a/step-00000010/states-0000%d-of-00003.safetensors", r),
            fake_at("b/step-00000010/states-0000%d-of-00003.safetensors", r));
    }
    ASSERT_OK(fake_load(&results, 4, &whole, fake_at("a/step-00000010"), NULL));
    ASSERT_OK(fake_load(&results, 4, &plain, fake_at("b/step-00000010"), NULL));
}

static void reading_gives_the_values(void **state)
{
    (void)state;
    const struct fake_options plain = { .extra_json = "{\"cursor\": [3, 4]}" };
    struct sherd_ckpt *ckpt;
    struct sherd_ckpt_info info;
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("run")));
    ASSERT_OK(sherd_ckpt_open(&ckpt, fake_at("run/step-00000010")));
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    sherd_ckpt_info_of(ckpt, &info);
    assert_int_equal(info.step, 10);
    assert_int_equal(info.world, 3);
    assert_int_equal(info.n_files, 6);
    assert_int_equal(info.tokens_seen, 1000);
    assert_string_equal(info.optimizer, "adamw");
    assert_string_equal(info.extra, "{\"cursor\":[3,4]}");
    for (int i = 0; i < info.n_tensors; i++) {
        struct sherd_ckpt_tensor t;
        struct sherd_ckpt_span s;
        int64_t end = 0;
        ASSERT_OK(sherd_ckpt_tensor_at(ckpt, i, &t));
        for (int k = 0; k < t.n_spans; k++) {
            ASSERT_OK(sherd_ckpt_span_at(ckpt, i, k, &s));
            assert_int_equal(s.first, end);
            end += s.elems;
        }
        assert_int_equal(end, t.elems);
        float *values = mem_zalloc((size_t)t.elems, sizeof(float));
        int64_t first = t.elems / 3;
        ASSERT_OK(sherd_ckpt_read(ckpt, "weight", i, first, t.elems - first, values));
        for (int64_t e = first; e < t.elems; e++) {
            float want = fake_value(&plain, "weight", t.name, e);
            assert_true(values[e - first] == (t.frozen ? bf16_to_float(bf16_from_float(want)) : want));
        }
        if (t.frozen) {
            ASSERT_FAILS(sherd_ckpt_read(ckpt, "adam.m", i, 0, 1, values), SHERD_ENOTFOUND, t.name);
        } else {
            ASSERT_OK(sherd_ckpt_read(ckpt, "adam.v", i, 0, t.elems, values));
            assert_true(values[t.elems - 1] == fake_value(&plain, "adam.v", t.name, t.elems - 1));
        }
        ASSERT_FAILS(sherd_ckpt_read(ckpt, "weight", i, 0, t.elems + 1, values), SHERD_EINVAL, t.name);
        ASSERT_FAILS(sherd_ckpt_span_at(ckpt, i, t.n_spans, &s), SHERD_EINVAL, t.name);
        mem_free(values);
    }
    float x;
    struct sherd_ckpt_tensor t;
    ASSERT_FAILS(sherd_ckpt_read(ckpt, "momentum", 0, 0, 1, &x), SHERD_ENOTFOUND, "momentum");
    ASSERT_FAILS(sherd_ckpt_tensor_at(ckpt, info.n_tensors, &t), SHERD_EINVAL, "there is no tensor");
    sherd_ckpt_close(ckpt);
}

static void tensors_stand_in_the_order_of_the_model(void **state)
{
    (void)state;
    static const char *const names[] = { "scale", "wte.weight", "wpe.weight", "h.0.ln.weight", "h.0.q.weight",
        "h.0.k.weight", "h.0.v.weight", "h.0.q.bias", "h.0.k.bias", "h.0.v.bias", "h.0.ice", "h.0.one",
        "h.1.big.weight", "h.1.a", "h.1.b", "h.1.c", "still.a", "still.b" };
    const struct fake_options plain = { 0 };
    struct sherd_ckpt *ckpt;
    struct sherd_ckpt_tensor t;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    ASSERT_OK(sherd_ckpt_open(&ckpt, fake_at("run/step-00000010")));
    assert_int_equal(ckpt->manifest.n_tensors, ARRAY_LEN(names));
    for (int i = 0; i < (int)ARRAY_LEN(names); i++) {
        ASSERT_OK(sherd_ckpt_tensor_at(ckpt, i, &t));
        assert_string_equal(t.name, names[i]);
    }
    ASSERT_OK(sherd_ckpt_tensor_at(ckpt, 1, &t));
    assert_string_equal(t.alias, "lm_head.weight");
    ASSERT_OK(sherd_ckpt_tensor_at(ckpt, 17, &t));
    assert_int_equal(t.dims, 4);
    assert_int_equal(t.shape[3], 5);
    assert_int_equal(t.type, SHERD_BF16);
    assert_true(t.frozen);
    sherd_ckpt_close(ckpt);
}

static void a_rank_file_describes_its_pieces(void **state)
{
    (void)state;
    const struct fake_options plain = { 0 };
    struct st_header h;
    struct fake_results r;
    const char *path = fake_at("run/step-00000010/weights-00001-of-00002.safetensors");
    int fd;
    ASSERT_OK(fake_save(&r, 2, &plain, fake_at("run")));
    ASSERT_OK(file_open_read(&fd, path));
    ASSERT_OK(st_read(&h, fd, path));
    ASSERT_OK(file_close(fd, path));
    assert_string_equal(st_meta_find(&h, "format"), "pt");
    assert_string_equal(st_meta_find(&h, "step"), "10");
    assert_string_equal(st_meta_find(&h, "rank"), "1");
    const char *spans = st_meta_find(&h, "spans");
    const struct st_entry *e = st_find(&h, "h.1.big.weight");
    assert_int_equal(e->dims, 1);
    json_t *root_object, *span, *shape, *offsets;
    ASSERT_OK(json_parse(&root_object, spans, strlen(spans), "spans"));
    ASSERT_OK(json_get_object(root_object, "h.1.big.weight", "spans", &span));
    ASSERT_OK(json_get_array(span, "shape", "spans", &shape));
    ASSERT_OK(json_get_array(span, "saved_offsets", "spans", &offsets));
    assert_int_equal(json_integer_value(json_array_get(shape, 1)), 41);
    assert_int_equal(json_integer_value(json_array_get(offsets, 0)) + e->elems, 300 * 41);
    assert_null(json_object_get(root_object, "h.1.a"));
    json_decref(root_object);
    for (int i = 0; i < h.n; i++)
        assert_int_equal((h.entries[i].begin - h.bytes) % (h.entries[i].type == SHERD_F32 ? 4 : 2), 0);
    st_finish(&h);
}

static void freezing_and_thawing(void **state)
{
    (void)state;
    const struct fake_options plain = { 0 }, frozen = { .freeze_all = 1, .frozen_type = SHERD_F32 },
                              wte = { .freeze_wte = 1, .frozen_type = SHERD_F32 },
                              wide = { .frozen_type = SHERD_F32 };
    ASSERT_OK(fake_save(&results, 3, &frozen, fake_at("frozen")));
    assert_false(file_exists(fake_at("frozen/step-00000010/states-00000-of-00003.safetensors")));
    ASSERT_OK(fake_load(&results, 2, &frozen, fake_at("frozen/step-00000010"), NULL));
    ASSERT_OK(fake_save(&results, 3, &wte, fake_at("wte")));
    /* trained again: its states start at zero */
    ASSERT_OK(fake_load(&results, 2, &wide, fake_at("wte/step-00000010"), "wte.weight"));
    ASSERT_OK(fake_save(&results, 3, &wide, fake_at("wide")));
    /* frozen now: its states are left */
    ASSERT_OK(fake_load(&results, 2, &wte, fake_at("wide/step-00000010"), NULL));
    /* F32 to BF16 and back, for what is frozen */
    ASSERT_OK(fake_load(&results, 2, &plain, fake_at("wide/step-00000010"), NULL));
    const struct fake_options narrow = { .freeze_wte = 1 };
    ASSERT_OK(fake_load(&results, 2, &narrow, fake_at("wide/step-00000010"), NULL));
    merge(fake_at("frozen"), fake_at("frozen-merged"), SHERD_F32);
    merge(fake_at("wide"), fake_at("wide-merged"), SHERD_F32);
    assert_same_file(fake_at("frozen-merged/model.safetensors"), fake_at("wide-merged/model.safetensors"));
}

static void no_states_no_files(void **state)
{
    (void)state;
    const struct fake_options sgd = { .sgd = 1 };
    ASSERT_OK(fake_save(&results, 2, &sgd, fake_at("run")));
    assert_false(file_exists(fake_at("run/step-00000010/states-00000-of-00002.safetensors")));
    ASSERT_OK(fake_load(&results, 3, &sgd, fake_at("run/step-00000010"), NULL));
}

static void assert_nothing_but(const char *dir, const char *const *want, int n_want)
{
    char **names;
    int n;
    ASSERT_OK(file_list(&names, &n, dir));
    assert_int_equal(n, n_want);
    for (int i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_list_free(names, n);
}

static void a_step_is_replaced(void **state)
{
    (void)state;
    static const char *const want[] = { "latest", "step-00000010" }, *const kept[] = {
        "damaged-step-00000010", "latest", "step-00000010"
    };
    const struct fake_options plain = { 0 }, other = { .seed = 2 }, model = { .extra = 1 };
    char *latest;
    ASSERT_OK(fake_save(&results, 2, &plain, fake_at("run")));
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("run")));
    assert_nothing_but(fake_at("run"), want, 2);
    ASSERT_OK(fake_load(&results, 2, &plain, fake_at("run/step-00000010"), NULL));
    ASSERT_OK(file_read_text(&latest, NULL, fake_at("run/latest"), 100));
    assert_string_equal(latest, "step-00000010\n");
    mem_free(latest);
    ASSERT_FAILS(fake_save(&results, 2, &other, fake_at("run")), SHERD_EEXISTS, "another run");
    assert_int_equal(results.status[1], SHERD_EPEER);
    ASSERT_FAILS(fake_save(&results, 2, &model, fake_at("run")), SHERD_EEXISTS, "run/step-00000010");
    assert_nothing_but(fake_at("run"), want, 2);
    /* what is not complete is renamed */
    ASSERT_OK(file_remove_tree(fake_at("run/step-00000010/manifest.json")));
    ASSERT_OK(fake_save(&results, 1, &other, fake_at("run")));
    ASSERT_OK(fake_load(&results, 2, &other, fake_at("run/step-00000010"), NULL));
    assert_nothing_but(fake_at("run"), kept, 3);
}

static void a_rank_that_fails_fails_all(void **state)
{
    (void)state;
    static const char *const want[] = { "latest", "step-00000010" };
    const struct fake_options plain = { 0 }, breaks = { .breaks = 2, .step = 11 },
                              bad = { .extra_json = "[]", .step = 11 };
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("run")));
    ASSERT_FAILS(
        fake_save(&results, 3, &breaks, fake_at("run")), SHERD_EINTERNAL, "no view of weight of unit root");
    assert_int_equal(results.status[0], SHERD_EPEER);
    assert_int_equal(results.status[2], SHERD_EPEER);
    ASSERT_CONTAINS(results.text[0], "rank 1: ");
    ASSERT_FAILS(
        fake_save(&results, 3, &bad, fake_at("run")), SHERD_EFORMAT, "'extra' must be a JSON object");
    assert_nothing_but(fake_at("run"), want, 2);
    ASSERT_OK(fake_load(&results, 2, &plain, fake_at("run/step-00000010"), NULL));
}

static void a_full_disk_leaves_no_trace(void **state)
{
    (void)state;
    static const char *const want[] = { "latest", "step-00000010" };
    const struct fake_options plain = { 0 };
    ASSERT_OK(fake_save(&results, 3, &plain, fake_at("run")));
    static const uint64_t limits[] = { 1, 1000, 20000, 40000 };
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        const struct fake_options next = { .step = 11, .file_limit = limits[i] };
        ASSERT_FAILS(fake_save(&results, 3, &next, fake_at("run")), SHERD_EIO, "File too large");
        for (int r = 0; r < 3; r++)
            assert_int_not_equal(results.status[r], SHERD_OK);
        assert_nothing_but(fake_at("run"), want, 2);
    }
    const struct fake_options enough = { .step = 11, .file_limit = 100000 };
    ASSERT_OK(fake_save(&results, 3, &enough, fake_at("run")));
}

/* A file that was saved before blocks had sums: read at any world, and a changed byte is still found. */
static void the_first_version_is_read(void **state)
{
    (void)state;
    static const int worlds[] = { 1, 2, 3, 5 };
    const struct fake_options small = { .missing = 1 };
    const char *old = getenv("SHERD_TEST_V1");
    char *path;
    struct sherd_ckpt *ckpt;
    assert_non_null(old);
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++)
        ASSERT_OK(fake_load(&results, worlds[i], &small, old, NULL));
    ASSERT_OK(sherd_ckpt_find(&path, old));
    ASSERT_OK(sherd_ckpt_open(&ckpt, path));
    assert_int_equal(ckpt->manifest.version, 1);
    ASSERT_OK(sherd_ckpt_verify(ckpt));
    sherd_ckpt_close(ckpt);
    free(path);
    merge(old, fake_at("merged-old"), SHERD_F32);
    ASSERT_OK(fake_save(&results, 2, &small, fake_at("new")));
    merge(fake_at("new"), fake_at("merged-new"), SHERD_F32);
    assert_same_file(fake_at("merged-old/model.safetensors"), fake_at("merged-new/model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(any_world_to_any_world, fake_fresh),
        cmocka_unit_test_setup(tensors_above_the_buffers, fake_fresh),
        cmocka_unit_test_setup(whole_views_write_the_same_weights, fake_fresh),
        cmocka_unit_test_setup(reading_gives_the_values, fake_fresh),
        cmocka_unit_test_setup(tensors_stand_in_the_order_of_the_model, fake_fresh),
        cmocka_unit_test_setup(a_rank_file_describes_its_pieces, fake_fresh),
        cmocka_unit_test_setup(freezing_and_thawing, fake_fresh),
        cmocka_unit_test_setup(no_states_no_files, fake_fresh),
        cmocka_unit_test_setup(a_step_is_replaced, fake_fresh),
        cmocka_unit_test_setup(a_rank_that_fails_fails_all, fake_fresh),
        cmocka_unit_test_setup(the_first_version_is_read, fake_fresh),
        cmocka_unit_test_setup(a_full_disk_leaves_no_trace, fake_fresh),
    };
    return cmocka_run_group_tests(tests, fake_enter, fake_leave);
}

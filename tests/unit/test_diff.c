/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Comparing and verifying checkpoints and model folders: copies of kept ones, with single bytes changed.
 */
#include "tests/check.h"
#include "tests/folder.h"

#include <math.h>
#include <stdlib.h>

#include <sherd/sherd.h>
#include "base/file.h"
#include "base/mem.h"
#include "ckpt/hf.h"

static char folder[FOLDER_BYTES], text[16][1024];

/* One of a few texts that are valid for a while. */
static const char *at(const char *format, const char *a, const char *b)
{
    static int next;
    char *out = text[next++ % 16], made[sizeof(text[0])]; /* a or b may be `out` */
    snprintf(made, sizeof(made), format, a, b);
    return memcpy(out, made, sizeof(made));
}

static const char *v1(void)
{
    return at("%s/v1%s", getenv("FIXTURES"), "");
}

static const char *golden(const char *name)
{
    return at("%s/../golden/hf/%s", getenv("FIXTURES"), name);
}

/* A copy of a folder's files. */
static const char *copied(const char *from, const char *name)
{
    char **files;
    int n;
    const char *to = at("%s/%s", folder, name);
    ASSERT_OK(file_remove_tree(to));
    ASSERT_OK(file_mkdirs(to));
    ASSERT_OK(file_list(&files, &n, from));
    for (int i = 0; i < n; i++) {
        struct file_map map;
        ASSERT_OK(file_map(&map, at("%s/%s", from, files[i])));
        ASSERT_OK(file_write_atomic(at("%s/%s", to, files[i]), map.data, map.bytes));
        file_unmap(&map);
    }
    file_list_free(files, n);
    return to;
}

/* Puts a float or half over element `i` of a tensor in a model folder. */
static void put(const char *dir, const char *tensor, int64_t i, const void *value)
{
    struct hf_model *m;
    ASSERT_OK(hf_open(&m, dir));
    const struct hf_tensor *t = hf_find(m, tensor);
    assert_non_null(t);
    size_t size = sherd_dtype_bytes(t->entry->type);
    const char *path = at("%s/%s", dir, m->files[t->file].name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->entry->begin + (uint64_t)i * size), SEEK_SET), 0);
    assert_int_equal(fwrite(value, size, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    hf_close(m);
}

struct seen {
    int n, equal;
    struct sherd_diff_item last; /* of those that differ; texts are not kept */
    char name[128], what[64];
};

static void see(void *ctx, const struct sherd_diff_item *item)
{
    struct seen *s = ctx;
    if (item->kind == SHERD_DIFF_VALUES && item->n_different == 0) {
        s->equal++;
        return;
    }
    s->n++;
    s->last = *item;
    snprintf(s->name, sizeof(s->name), "%s", item->name);
    snprintf(s->what, sizeof(s->what), "%s", item->what);
}

static struct seen diff(const char *a, const char *b, struct sherd_diff_result *r)
{
    struct seen s = { 0 };
    ASSERT_OK(sherd_diff(&(struct sherd_diff_desc){ .a = a, .b = b, .item = see, .ctx = &s }, r));
    assert_int_equal(s.n, r->different);
    return s;
}

/* The merged model of the v1 checkpoint as a folder. */
static const char *merged(const char *name)
{
    const char *to = at("%s/%s", folder, name);
    ASSERT_OK(file_remove_tree(to));
    struct sherd_merge_desc desc = { .from = v1(), .to = to, .type = SHERD_F32 };
    ASSERT_OK(sherd_merge(&desc, NULL));
    return to;
}

static void equal_in_any_form(void **state)
{
    (void)state;
    struct sherd_diff_result r;
    const char *model = merged("model");
    diff(v1(), v1(), &r);
    assert_int_equal(r.different, 0);
    assert_int_equal(r.compared, 5 + 16 + 2 * 13); /* texts, weights, moments of what is not frozen */
    diff(v1(), model, &r);
    assert_int_equal(r.different, 0);
    assert_int_equal(r.compared, 16);
    assert_int_equal(r.elems, 1752);
    diff(model, at("%s/v1/step-00000002%s", getenv("FIXTURES"), ""), &r);
    assert_int_equal(r.different, 0);
    /* both names of the tied tensor */
    const char *both = at("%s/%s", folder, "both");
    struct sherd_merge_desc desc = { .from = v1(), .to = both, .type = SHERD_F32, .aliases = 1 };
    ASSERT_OK(sherd_merge(&desc, NULL));
    diff(v1(), both, &r);
    assert_int_equal(r.different, 0);
    assert_int_equal(r.compared, 17);
    /* a bare GPT-2 */
    diff(golden("gpt2"), golden("gpt2"), &r);
    assert_int_equal(r.different, 0);
}

static void one_value(void **state)
{
    (void)state;
    struct sherd_diff_result r;
    const char *model = merged("model");
    const char *changed = copied(model, "changed");
    float old = 0, value;
    struct hf_model *m;
    ASSERT_OK(hf_open(&m, changed));
    ASSERT_OK(hf_read(m, hf_find(m, "transformer.h.0.mlp.c_fc.weight"), 77, 1, &old));
    hf_close(m);
    value = nextafterf(nextafterf(old, 9), 9);
    put(changed, "transformer.h.0.mlp.c_fc.weight", 77, &value);
    struct seen s = diff(v1(), changed, &r);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.equal, 15);
    assert_string_equal(s.name, "transformer.h.0.mlp.c_fc.weight");
    assert_string_equal(s.what, "weight");
    assert_int_equal(s.last.first, 77);
    assert_int_equal(s.last.n_different, 1);
    assert_int_equal(s.last.max_ulps, 2);
    assert_true(s.last.max_abs == fabs((double)value - (double)old));
    assert_true(s.last.max_rel > 0 && s.last.max_rel < 3e-7);
    value = NAN;
    put(changed, "transformer.h.0.mlp.c_fc.weight", 77, &value);
    s = diff(model, changed, &r);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.last.max_ulps, -1);
    assert_true(isnan(s.last.max_abs));
    value = -0.0f;
    put(changed, "transformer.h.0.mlp.c_fc.weight", 77, &value);
    put(model, "transformer.h.0.mlp.c_fc.weight", 77, &(float){ 0 });
    s = diff(model, changed, &r);
    assert_int_equal(s.n, 1);                                 /* other bits, */
    assert_true(s.last.max_abs == 0 && s.last.max_ulps == 0); /* but no distance */
}

static void other_tensors(void **state)
{
    (void)state;
    struct sherd_diff_result r;
    struct seen s = diff(golden("qwen2"), golden("qwen3"), &r);
    assert_true(s.n > 20);
    ASSERT_FAILS(sherd_diff(&(struct sherd_diff_desc){ .a = v1(), .b = folder }, &r), SHERD_ENOTFOUND,
        "no checkpoint");
}

static int verify_model(const char *dir, struct sherd_weights_info *info)
{
    struct sherd_model_config config;
    struct sherd_model *model;
    char *json;
    size_t bytes;
    SHERD_TRY(file_read_text(&json, &bytes, at("%s/config.json%s", dir, ""), 1 << 20));
    int st = sherd_model_config_json(&config, json, bytes, "config.json");
    mem_free(json);
    SHERD_TRY(st);
    SHERD_TRY(sherd_model_build(&model, &config));
    st = sherd_weights_verify(dir, sherd_model_spec_of(model), info);
    sherd_model_destroy(model);
    return st;
}

static void models_are_verified(void **state)
{
    (void)state;
    struct sherd_weights_info info;
    assert_true(sherd_weights_found(golden("llama")));
    assert_false(sherd_weights_found(v1()));
    ASSERT_OK(verify_model(golden("llama"), &info));
    assert_int_equal(info.n_files, 3);
    assert_int_equal(info.elems, 12264);
    const char *copy = copied(golden("llama"), "copy");
    put(copy, "model.layers.1.mlp.up_proj.weight", 5, &(uint16_t){ 0x7f80 });
    ASSERT_FAILS(
        verify_model(copy, &info), SHERD_ENONFINITE, "'model.layers.1.mlp.up_proj.weight', element 5");
    copy = copied(golden("qwen2"), "copy"); /* F16 */
    put(copy, "model.norm.weight", 0, &(uint16_t){ 0x7e00 });
    ASSERT_FAILS(verify_model(copy, &info), SHERD_ENONFINITE, "'model.norm.weight', element 0");
    copy = at("%s/%s", folder, "both");
    ASSERT_OK(verify_model(copy, &info));
    put(copy, "lm_head.weight", 347, &(float){ 3 });
    ASSERT_FAILS(verify_model(copy, &info), SHERD_EFORMAT, "are tied by config.json, but differ");
    copy = copied(golden("qwen3"), "copy");
    assert_int_equal(truncate(at("%s/model.safetensors%s", copy, ""), 20000), 0);
    ASSERT_FAILS(verify_model(copy, &info), SHERD_EFORMAT, "model.safetensors");
}

static void a_changed_byte_is_found(void **state)
{
    (void)state;
    struct sherd_ckpt *ckpt;
    const char *copy = copied(at("%s/v1/step-00000002%s", getenv("FIXTURES"), ""), "step");
    FILE *f = fopen(at("%s/%s", copy, "states-00001-of-00003.safetensors"), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -7, SEEK_END), 0);
    assert_true(fputc(1, f) == 1 && fclose(f) == 0);
    ASSERT_OK(sherd_ckpt_open(&ckpt, copy));
    ASSERT_FAILS(sherd_ckpt_verify(ckpt), SHERD_ECORRUPT, "states-00001-of-00003.safetensors");
    sherd_ckpt_close(ckpt);
}

static int enter(void **state)
{
    (void)state;
    return folder_make(folder, "diff");
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_in_any_form),
        cmocka_unit_test(one_value),
        cmocka_unit_test(other_tensors),
        cmocka_unit_test(models_are_verified),
        cmocka_unit_test(a_changed_byte_is_found),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}

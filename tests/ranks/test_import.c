/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Model folders that transformers saved: imported at several worlds and stages they give its logits, every
 * rank reads its own part only, and what is saved, merged and imported again is the same model, bit for bit.
 * And folders that do not fit.
 */
#include "tests/t.h"
#include "tests/folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <sherd/sherd.h>
#include "base/file.h"
#include "base/mem.h"
#include "ckpt/hf.h"
#include "runtime/engine.h"

static char folder[FOLDER_BYTES];
static const char *const names[] = { "gpt2", "llama", "qwen2", "qwen3" };
static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F16, SHERD_BF16 };

enum { MAX_WORLD = 4 };

struct trial {
    char from[512], expect[512], run[256], yaml[256];
    char other[512]; /* what rank 1 has there instead; "" = the same */
    int stage;
    int save;
    uint64_t bytes[MAX_WORLD];
};

static const void *tensor(const struct file_map *map, const struct st_header *h, const char *name)
{
    return map->data + st_find(h, name)->begin;
}

static double error_of(const float *a, const float *want, int64_t n)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - want[i]) * ((double)a[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    return sqrt(off / all);
}

static void compare_logits(struct trial *t, struct sherd_engine *engine)
{
    struct file_map map;
    struct st_header h;
    T_OK(file_map(&map, t->expect));
    T_OK(st_parse(&h, map.data, map.bytes, map.bytes, t->expect));
    const int64_t *shape = st_find(&h, "logits")->shape;
    int64_t n = shape[0] * shape[1] * shape[2];
    const int32_t *tokens = tensor(&map, &h, "tokens");
    int32_t targets[64];
    float *logits = mem_zalloc((size_t)n, sizeof(*logits));
    T_TRUE(logits && shape[0] * shape[1] <= 64);
    for (int i = 0; i < 64; i++)
        targets[i] = -1;
    struct sherd_batch batch = { tokens, targets, shape[0] };
    T_OK(sherd_engine_logits(engine, &batch, logits));
    double error = error_of(logits, tensor(&map, &h, "logits"), n);
    if (!(error < 3e-6))
        T_FAIL("%s, stage %d: logits are off by %g", t->from, t->stage, error);
    mem_free(logits);
    st_finish(&h);
    file_unmap(&map);
}

static void import_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct trial *t = ctx;
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *engine;
    char from[600], stage[32];
    const char *dir = t->other[0] && rank == 1 ? t->other : t->from;
    snprintf(from, sizeof(from), "model.from=%s", t->from);
    snprintf(stage, sizeof(stage), "shard.stage=%d", t->stage);
    const char *const set[] = { from, stage, "batch.seq=12", "batch.micro=2", "train.steps=1" };
    T_OK(sherd_config_load(&config, t->yaml, set, (int)ARRAY_LEN(set), 0));
    T_OK(sherd_config_model(&model, &config));
    T_OK(sherd_engine_create_blank(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm }));
    int st = sherd_engine_import(engine, dir, &t->bytes[rank]);
    if (!t->other[0]) {
        T_OK(st);
        compare_logits(t, engine);
    } else {
        T_TRUE(st == (rank == 1 ? SHERD_ECONFIG : SHERD_EPEER));
        T_HAS(sherd_error(), "rank 1 sees other weights there than rank 0");
    }
    if (t->save)
        T_OK(sherd_engine_save(engine, t->run, NULL));
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

static void init(struct trial *t, const char *name, int stage)
{
    *t = (struct trial){ .stage = stage };
    snprintf(t->from, sizeof(t->from), "%s/%s", getenv("MODELS"), name);
    snprintf(t->expect, sizeof(t->expect), "%s/%s/expect.safetensors", getenv("MODELS"), name);
    snprintf(t->run, sizeof(t->run), "%s/%s-%d", folder, name, stage);
    snprintf(t->yaml, sizeof(t->yaml), "%s/empty.yaml", folder);
}

static void imported_logits_are_those_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (int stage = 0; stage <= 3; stage++) {
            struct trial t;
            init(&t, names[i], stage);
            t_ranks(stage == 0 ? 1 : 3, T_THREADS, import_rank, &t);
        }
    }
}

static int all_zero(const void *p, uint64_t bytes)
{
    const unsigned char *at = p;
    uint64_t i = 0;
    while (i < bytes && at[i] == 0)
        i++;
    return i == bytes;
}

/* Of both engines, with and without drawn weights below what was imported. */
static void same_weights(struct sherd_engine *a, struct sherd_engine *b)
{
    const struct shard_layout *layout = &a->plan.layout;
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        float *x = mem_zalloc((size_t)t->elems, sizeof(*x)), *y = mem_zalloc((size_t)t->elems, sizeof(*y));
        T_TRUE(x && y);
        T_OK(sherd_engine_tensor(a, "weight", t->name, x, t->elems));
        T_OK(sherd_engine_tensor(b, "weight", t->name, y, t->elems));
        T_TRUE(!memcmp(x, y, (size_t)t->elems * sizeof(*x)));
        mem_free(x);
        mem_free(y);
    }
}

static void blank_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct trial *t = ctx;
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *blank, *drawn;
    char from[600], stage[32];
    snprintf(from, sizeof(from), "model.from=%s", t->from);
    snprintf(stage, sizeof(stage), "shard.stage=%d", t->stage);
    const char *const set[] = { from, stage, "batch.seq=12", "batch.micro=2", "train.steps=1",
        "dtype.param=bf16" };
    T_OK(sherd_config_load(&config, t->yaml, set, (int)ARRAY_LEN(set), 0));
    T_OK(sherd_config_model(&model, &config));
    const struct sherd_engine_desc desc = { &config, model, dev, comm };
    T_OK(sherd_engine_create_blank(&blank, &desc));
    T_OK(sherd_engine_create(&drawn, &desc));
    T_TRUE(all_zero(blank->store.region[0], blank->plan.memory.param));
    T_TRUE(all_zero(blank->store.region[1], blank->plan.memory.master));
    T_TRUE(!all_zero(drawn->store.region[0], drawn->plan.memory.param));
    T_TRUE(sherd_engine_eval(blank, NULL, 0, NULL, NULL) == SHERD_EINVAL);
    T_TRUE(sherd_engine_save(blank, t->run, NULL) == SHERD_EINVAL);
    T_TRUE(strstr(sherd_error(), "made without weights: load a checkpoint, or import a model, first"));
    T_OK(sherd_engine_import(blank, t->from, &t->bytes[rank]));
    T_OK(sherd_engine_import(drawn, t->from, NULL));
    same_weights(blank, drawn);
    sherd_engine_destroy(drawn);
    sherd_engine_destroy(blank);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

/* What will be imported is not drawn before, and it is the same. */
static void weights_are_not_drawn_in_vain(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage += 3) {
        struct trial t;
        init(&t, names[1], stage);
        t_ranks(2, T_THREADS, blank_rank, &t);
    }
}

/* Another training of the same model, on the host of rank 1. */
static void other_weights_on_a_rank_are_told(void **state)
{
    (void)state;
    struct trial t;
    struct file_map map;
    struct st_header h;
    char path[700];
    init(&t, names[2], 1);
    snprintf(t.other, sizeof(t.other), "%s/other", folder);
    ASSERT_OK(file_mkdirs(t.other));
    snprintf(path, sizeof(path), "%s/model.safetensors", t.from);
    ASSERT_OK(file_map(&map, path));
    ASSERT_OK(st_parse(&h, map.data, map.bytes, map.bytes, path));
    snprintf(path, sizeof(path), "%s/model.safetensors", t.other);
    ASSERT_OK(file_write_atomic(path, map.data, map.bytes));
    for (int i = 0; i < h.n; i++) /* one value of each tensor */
        t_flip(path, (h.entries[i].begin + h.entries[i].end) / 2);
    t_ranks(3, T_THREADS, import_rank, &t);
    st_finish(&h);
    file_unmap(&map);
}

/* Together the ranks read each tensor once, and each of them the headers and the index. */
static void each_rank_reads_its_part(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct trial t;
        struct hf_model *m;
        uint64_t tensors = 0, read = 0, most = 0;
        init(&t, names[i], 3);
        t_ranks(4, T_THREADS, import_rank, &t);
        ASSERT_OK(hf_open(&m, t.from));
        for (int k = 0; k < m->n_tensors; k++)
            tensors += m->tensors[k].entry->end - m->tensors[k].entry->begin;
        for (int r = 0; r < 4; r++) {
            read += t.bytes[r] - m->bytes_read;
            most = t.bytes[r] - m->bytes_read > most ? t.bytes[r] - m->bytes_read : most;
        }
        assert_int_equal(read, tensors);
        assert_true(most < tensors / 2);
        hf_close(m);
    }
}

static void same_tensors(const char *a, const char *b)
{
    struct hf_model *x, *y;
    ASSERT_OK(hf_open(&x, a));
    ASSERT_OK(hf_open(&y, b));
    assert_int_equal(x->n_tensors, y->n_tensors);
    for (int i = 0; i < y->n_tensors; i++) {
        const struct hf_tensor *t = &y->tensors[i], *s = hf_find_any(x, t->name);
        if (!s)
            fail_msg("%s has no %s", a, t->name);
        assert_string_equal(s->entry->type_name, t->entry->type_name);
        assert_int_equal(s->entry->elems, t->entry->elems);
        size_t bytes = (size_t)(t->entry->end - t->entry->begin);
        char *p = mem_zalloc(bytes, 1), *q = mem_zalloc(bytes, 1);
        assert_non_null(p);
        assert_non_null(q);
        ASSERT_OK(hf_read(x, s, 0, s->entry->elems, p));
        ASSERT_OK(hf_read(y, t, 0, t->entry->elems, q));
        assert_memory_equal(p, q, bytes);
        mem_free(p);
        mem_free(q);
    }
    hf_close(x);
    hf_close(y);
}

static void what_is_exported_is_what_was_imported(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (int stage = 0; stage <= 3; stage++) {
            struct trial t;
            char to[400], *config;
            init(&t, names[i], stage);
            t.save = 1;
            t_ranks(2, T_THREADS, import_rank, &t);
            snprintf(to, sizeof(to), "%s/model", t.run);
            struct sherd_merge_desc desc = {
                .from = t.run, .to = to, .type = types[i], .shard_bytes = stage % 2 ? 10000 : 0
            };
            ASSERT_OK(sherd_merge(&desc, NULL));
            same_tensors(t.from, to);
            char path[500];
            snprintf(path, sizeof(path), "%s/config.json", to);
            ASSERT_OK(file_read_text(&config, NULL, path, 1 << 20));
            ASSERT_CONTAINS(config, "\"eos_token_id\": 2");
            ASSERT_CONTAINS(config, i == 0 ? "\"GPT2LMHeadModel\"" : "ForCausalLM\"");
            mem_free(config);
            snprintf(t.from, sizeof(t.from), "%s", to);
            t.save = 0;
            t_ranks(3, T_THREADS, import_rank, &t);
        }
    }
}

/* ---- what does not fit ---- */

/* A copy of a model folder with its config.json changed; NULL texts leave it as it is. */
static void copy_model(struct trial *t, const char *name, const char *find, const char *replace)
{
    char **files, path[600];
    int n;
    init(t, name, 0);
    snprintf(path, sizeof(path), "%s/copy", folder);
    ASSERT_OK(file_remove_tree(path));
    ASSERT_OK(file_mkdirs(path));
    ASSERT_OK(file_list(&files, &n, t->from));
    for (int i = 0; i < n; i++) {
        struct file_map map;
        snprintf(path, sizeof(path), "%s/%s", t->from, files[i]);
        ASSERT_OK(file_map(&map, path));
        snprintf(path, sizeof(path), "%s/copy/%s", folder, files[i]);
        ASSERT_OK(file_write_atomic(path, map.data, map.bytes));
        file_unmap(&map);
    }
    file_list_free(files, n);
    snprintf(t->from, sizeof(t->from), "%s/copy", folder);
    if (!find)
        return;
    char *text, *at;
    snprintf(path, sizeof(path), "%s/config.json", t->from);
    ASSERT_OK(file_read_text(&text, NULL, path, 1 << 20));
    at = strstr(text, find);
    assert_non_null(at);
    char *changed = mem_printf("%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
    ASSERT_OK(file_write_atomic(path, changed, strlen(changed)));
    mem_free(text);
    mem_free(changed);
}

static int import_alone(struct trial *t, const char *const *set, int n)
{
    struct sherd_config config;
    struct sherd_model *model = NULL;
    struct sherd_device *dev = NULL;
    struct sherd_engine *engine = NULL;
    const char *all[8] = { "train.steps=1", "batch.seq=8", "batch.micro=1" };
    char from[600];
    int st = SHERD_OK, k = 3;
    snprintf(from, sizeof(from), "model.from=%s", t->from);
    all[k++] = from;
    for (int i = 0; i < n; i++)
        all[k++] = set[i];
    SHERD_TRY(sherd_config_load(&config, t->yaml, all, k, 0));
    SHERD_TRY_OUT(sherd_config_model(&model, &config));
    SHERD_TRY_OUT(sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    SHERD_TRY_OUT(sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, NULL }));
    st = sherd_engine_import(engine, t->from, NULL);
out:
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_device_close(dev);
    sherd_config_free(&config);
    return st;
}

static void configs_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *model, *find, *replace;
        int status;
        const char *text;
    } rows[] = {
        { "llama", "\"silu\"", "\"gelu\"", SHERD_EUNSUPPORTED,
            "'hidden_act' is 'gelu', sherd computes 'silu' only" },
        { "llama", "\"llama\"", "\"mistral\"", SHERD_EUNSUPPORTED,
            "'model_type' is 'mistral'; sherd has gpt2" },
        { "llama", "\"llama3\"", "\"yarn\"", SHERD_EUNSUPPORTED,
            "'rope_type' of the rotary positions is 'yarn'" },
        { "llama", "\"factor\": 8.0,", "\"factor\": 8.0, \"partial_rotary_factor\": 0.5,", SHERD_EUNSUPPORTED,
            "'partial_rotary_factor': sherd rotates heads whole" },
        { "llama", "\"mlp_bias\": false", "\"mlp_bias\": false, \"partial_rotary_factor\": 0.25",
            SHERD_EUNSUPPORTED, "'partial_rotary_factor'" },
        { "llama", "\"factor\": 8.0,", "", SHERD_EFORMAT, "member 'factor' is missing" },
        { "llama", "\"mlp_bias\": false", "\"mlp_bias\": true", SHERD_EUNSUPPORTED, "'mlp_bias'" },
        { "qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true", SHERD_EUNSUPPORTED,
            "'use_sliding_window'" },
        { "qwen3", "\"full_attention\"", "\"sliding_attention\"", SHERD_EUNSUPPORTED, "'layer_types'" },
        { "gpt2", "\"gelu_new\"", "\"relu\"", SHERD_EUNSUPPORTED, "'activation_function' is 'relu'" },
        { "gpt2", "\"n_head\": 3,", "", SHERD_EFORMAT, "member 'n_head' is missing" },
        { "qwen3", "\"vocab_size\": 61", "\"vocab_size\": 60", SHERD_EFORMAT,
            "'model.embed_tokens.weight' has shape [61, 24], this model needs [60, 24]" },
        { "qwen3", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", SHERD_EFORMAT,
            "'lm_head.weight' is missing: config.json says that it is not tied" },
        { "llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", SHERD_EFORMAT,
            "'model.layers.1.input_layernorm.weight' of model-" },
        { "llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", SHERD_EFORMAT,
            "'model.layers.2.input_layernorm.weight' is missing" },
        { "qwen2", "\"qwen2\"", "\"llama\"", SHERD_EFORMAT,
            "self_attn.k_proj.bias' of model.safetensors has no place" },
        { "llama", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", SHERD_EFORMAT,
            "are tied by config.json, but differ" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct trial t;
        copy_model(&t, rows[i].model, rows[i].find, rows[i].replace);
        ASSERT_FAILS(import_alone(&t, NULL, 0), rows[i].status, rows[i].text);
    }
}

static void files_that_do_not_fit(void **state)
{
    (void)state;
    struct trial t;
    char path[700], *text;
    copy_model(&t, "llama", NULL, NULL);
    ASSERT_OK(import_alone(&t, NULL, 0));
    snprintf(path, sizeof(path), "%s/model-00002-of-00003.safetensors", t.from);
    ASSERT_OK(file_remove_tree(path));
    ASSERT_FAILS(import_alone(&t, NULL, 0), SHERD_ENOTFOUND, "model-00002-of-00003.safetensors");
    copy_model(&t, "llama", NULL, NULL);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", t.from);
    ASSERT_OK(file_read_text(&text, NULL, path, 1 << 20));
    memcpy(strstr(text, "model-00003"), "model-00001", 11);
    ASSERT_OK(file_write_atomic(path, text, strlen(text)));
    mem_free(text);
    ASSERT_FAILS(import_alone(&t, NULL, 0), SHERD_EFORMAT, "is missing in model-00001-of-00003.safetensors");
    ASSERT_OK(file_remove_tree(path));
    ASSERT_FAILS(import_alone(&t, NULL, 0), SHERD_ENOTFOUND, "neither model.safetensors nor");
    snprintf(path, sizeof(path), "%s/config.json", t.from);
    ASSERT_OK(file_remove_tree(path));
    ASSERT_FAILS(import_alone(&t, NULL, 0), SHERD_ENOTFOUND, "config.json");
    snprintf(t.from, sizeof(t.from), "%s/nowhere", folder);
    ASSERT_FAILS(import_alone(&t, NULL, 0), SHERD_ECONFIG, "model.from: ");
}

static void settings_that_contradict_the_model(void **state)
{
    (void)state;
    struct trial t;
    init(&t, "qwen3", 0);
    ASSERT_OK(import_alone(&t, (const char *const[]){ "model.width=24", "model.tied=yes" }, 2));
    ASSERT_OK(import_alone(&t, (const char *const[]){ "model.head_dim=auto" }, 1));
    ASSERT_FAILS(import_alone(&t, (const char *const[]){ "model.width=32" }, 1), SHERD_ECONFIG,
        "--set: model.width: 32, but");
    ASSERT_FAILS(import_alone(&t, (const char *const[]){ "model.family=llama" }, 1), SHERD_ECONFIG,
        "config.json says qwen3");
}

static int enter(void **state)
{
    (void)state;
    char path[300];
    if (!getenv("MODELS") || folder_make(folder, "import") != 0)
        return -1;
    snprintf(path, sizeof(path), "%s/empty.yaml", folder);
    return file_write_atomic(path, "", 0);
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(imported_logits_are_those_of_transformers),
        cmocka_unit_test(weights_are_not_drawn_in_vain),
        cmocka_unit_test(other_weights_on_a_rank_are_told),
        cmocka_unit_test(each_rank_reads_its_part),
        cmocka_unit_test(what_is_exported_is_what_was_imported),
        cmocka_unit_test(configs_that_do_not_fit),
        cmocka_unit_test(files_that_do_not_fit),
        cmocka_unit_test(settings_that_contradict_the_model),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}

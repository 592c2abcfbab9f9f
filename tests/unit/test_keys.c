/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every row of the table of keys: it sets the field it names, a misspelt key is refused with the right one,
 * and so is a value of the wrong type or out of range, each with its line.
 */
#include "tests/check.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include "runtime/config.h"
#include "runtime/keys.h"

/* One key by the name of its field, a value that is not the default, how it prints, and what else it needs.
 */
struct sample {
    const char *path;
    size_t offset;
    const char *value, *shown, *with;
};
#define SAMPLE(section, field, ...)                                                                          \
    {                                                                                                        \
#section "." #field, offsetof(struct sherd_config, section.field), __VA_ARGS__                       \
    }

static const struct sample samples[] = {
    SAMPLE(run, dir, "my runs/a", "\"my runs/a\""),
    SAMPLE(run, device, "cuda", "cuda"),
    SAMPLE(run, threads, "3", "3"),
    SAMPLE(run, bind, "none", "none"),
    SAMPLE(run, tune, "no", "false"),
    SAMPLE(run, graph, "auto", "auto"),
    SAMPLE(run, seed, "1_000", "1000"),
    SAMPLE(run, deterministic, "yes", "true"),
    SAMPLE(run, resume, "auto", "auto"),
    SAMPLE(run, comm, "tcp", "tcp"),
    SAMPLE(run, timeout, "2m", "120"),
    SAMPLE(model, from, "models/a b", "\"models/a b\""),
    SAMPLE(model, family, "gpt2", "gpt2"),
    SAMPLE(model, vocab, "50257", "50257"),
    SAMPLE(model, width, "768", "768"),
    SAMPLE(model, layers, "12", "12"),
    SAMPLE(model, heads, "12", "12"),
    SAMPLE(model, kv_heads, "2", "2"),
    SAMPLE(model, head_dim, "64", "64"),
    SAMPLE(model, mlp_width, "96", "96"),
    SAMPLE(model, context, "1024", "1024"),
    SAMPLE(model, tied, "yes", "true"),
    SAMPLE(model, norm_eps, "1e-6", "1e-06"),
    SAMPLE(model, rope_theta, "500000", "500000"),
    SAMPLE(model, rope_scaling, "llama3", "llama3"),
    SAMPLE(model, rope_factor, "32", "32"),
    SAMPLE(model, rope_low_freq, "2", "2"),
    SAMPLE(model, rope_high_freq, "8", "8"),
    SAMPLE(model, rope_context, "4096", "4096"),
    SAMPLE(model, init_std, "0.006", "0.006"),
    SAMPLE(model, freeze, "[wte*, \"*.bias\"]", "[wte*, \"*.bias\"]"),
    SAMPLE(shard, stage, "3", "3"),
    SAMPLE(shard, prefetch, "2", "2"),
    SAMPLE(shard, overlap, "off", "false"),
    SAMPLE(shard, poison, "true", "true"),
    SAMPLE(shard, reduce, "copy", "copy"),
    SAMPLE(dtype, param, "bf16", "bf16"),
    SAMPLE(dtype, reduce, "bf16", "bf16", "dtype.param=bf16"),
    SAMPLE(dtype, master, "split", "split", "dtype.param=bf16"),
    SAMPLE(dtype, state, "bf16", "bf16"),
    SAMPLE(dtype, loss_scale, "128", "128"),
    SAMPLE(dtype, initial_scale_power, "20", "20"),
    SAMPLE(dtype, loss_scale_window, "500", "500"),
    SAMPLE(dtype, hysteresis, "4", "4"),
    SAMPLE(dtype, consecutive_hysteresis, "yes", "true"),
    SAMPLE(dtype, min_loss_scale, "0.25", "0.25"),
    SAMPLE(batch, global, "5e2", "500"),
    SAMPLE(batch, micro, "4", "4"),
    SAMPLE(batch, accum, "2", "2"),
    SAMPLE(batch, seq, "128", "128"),
    SAMPLE(optim, name, "sgd", "sgd"),
    SAMPLE(optim, lr, "3e-4", "0.0003"),
    SAMPLE(optim, beta1, "0.8", "0.8"),
    SAMPLE(optim, beta2, ".99", "0.99"),
    SAMPLE(optim, eps, "1e-7", "1e-07"),
    SAMPLE(optim, weight_decay, "0", "0"),
    SAMPLE(optim, momentum, "0.5", "0.5"),
    SAMPLE(optim, clip, "0.25", "0.25"),
    SAMPLE(schedule, kind, "wsd", "wsd", "schedule.decay=1"),
    SAMPLE(schedule, warmup, "10", "10"),
    SAMPLE(schedule, warmup_shape, "log", "log"),
    SAMPLE(schedule, warmup_from, "0.25", "0.25"),
    SAMPLE(schedule, decay, ".2", "0.2"),
    SAMPLE(schedule, min_lr, "0.05", "0.05"),
    SAMPLE(schedule, steps, "300", "300"),
    SAMPLE(schedule, count, "deepspeed", "deepspeed"),
    SAMPLE(train, steps, "5e5", "500000"),
    SAMPLE(train, epochs, "2", "2"),
    SAMPLE(train, eval_every, "7", "7"),
    SAMPLE(train, eval_batches, "3", "3"),
    SAMPLE(train, nonfinite, "skip", "skip"),
    SAMPLE(train, nonfinite_limit, "3", "3"),
    SAMPLE(train, recompute, "block", "block"),
    SAMPLE(data, train, "data/a.txt", "[data/a.txt]"),
    SAMPLE(data, weights, "[0.5]", "[0.5]", "data.train=x"),
    SAMPLE(data, split, "0.1", "0.1"),
    SAMPLE(data, split_seed, "7", "7", "data.split=0.1"),
    SAMPLE(data, end, "10", "10"),
    SAMPLE(data, val, "[a, b c]", "[a, \"b c\"]"),
    SAMPLE(data, format, "llmc", "llmc"),
    SAMPLE(data, shuffle, "no", "false"),
    SAMPLE(save, every, "0", "0"),
    SAMPLE(save, keep, "0", "0"),
    SAMPLE(save, keep_every, "1000", "1000"),
    SAMPLE(save, keep_best, "2", "2", "data.val=x"),
    SAMPLE(save, what, "weights", "weights"),
    SAMPLE(save, async, "true", "true"),
    SAMPLE(save, buffer, "64", "64"),
    SAMPLE(save, on_failure, "continue", "continue"),
    SAMPLE(log, every, "1", "1"),
    SAMPLE(log, jsonl, "false", "false"),
    SAMPLE(log, tensorboard, "true", "true"),
    SAMPLE(log, peak_tflops, "989", "989"),
    SAMPLE(profile, on, "true", "true"),
    SAMPLE(profile, file, "t.json", "t.json"),
    SAMPLE(profile, skip, "5", "5"),
    SAMPLE(profile, steps, "1", "1"),
    SAMPLE(profile, detail, "ops", "ops"),
    SAMPLE(check, collectives, "true", "true"),
    SAMPLE(check, replicas, "50", "50"),
};

static const struct sample *sample_of(const struct key *key)
{
    for (size_t i = 0; i < ARRAY_LEN(samples); i++)
        if (strcmp(samples[i].path, key->path) == 0)
            return &samples[i];
    fail_msg("%s: no sample; add one", key->path);
    return NULL;
}

static void shown(const struct key *key, const struct sherd_config *config, char out[128])
{
    struct text t = { 0 };
    char *s;
    key_print(key, config, &t);
    ASSERT_OK(text_take(&t, &s));
    snprintf(out, 128, "%s", s);
    mem_free(s);
}

/* "# one\nsection:\n  name: value\n": the key stands in line 3. */
static int parse_key(struct sherd_config *out, const char *path, const char *value, const char *with)
{
    char text[256];
    const char *dot = strchr(path, '.');
    snprintf(text, sizeof(text), "# one\n%.*s:\n  %s: %s\n", (int)(dot - path), path, dot + 1, value);
    return sherd_config_parse(out, text, strlen(text), "t.yaml", &with, with ? 1 : 0, 0);
}

static void table_is_in_order(void **state)
{
    (void)state;
    int section = 0;
    assert_int_equal(key_count(), ARRAY_LEN(samples));
    assert_null(key_at(-1));
    assert_null(key_at(key_count()));
    assert_null(key_section_at(-1));
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        while (key_section_at(section) && !key_in_section(key, key_section_at(section)->name))
            section++;
        assert_non_null(key_section_at(section));
        assert_ptr_equal(key_find(key->path), key);
        assert_true(strlen(key->help) > 5);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(key->offset, key_at(j)->offset);
    }
}

/* A documented key that maps to nothing, or to the wrong field, would go unnoticed otherwise. */
static void each_key_sets_the_field_it_names(void **state)
{
    (void)state;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const struct sample *s = sample_of(key);
        struct sherd_config config, plain;
        char before[128], after[128];
        assert_int_equal(key->offset, s->offset);
        ASSERT_OK(sherd_config_default(&plain));
        ASSERT_OK(parse_key(&config, s->path, s->value, s->with));
        shown(key, &plain, before);
        shown(key, &config, after);
        assert_string_equal(after, s->shown);
        assert_string_not_equal(after, before);
        sherd_config_free(&config);

        char set[160];
        snprintf(set, sizeof(set), "%s=%s", s->path, s->value);
        const char *overrides[] = { set, s->with };
        ASSERT_OK(sherd_config_parse(&config, "", 0, "t.yaml", overrides, s->with ? 2 : 1, 0));
        shown(key, &config, after);
        assert_string_equal(after, s->shown);
        sherd_config_free(&config);
        sherd_config_free(&plain);
    }
}

static void expect_line_3(const struct key *key, const char *value, const char *message)
{
    struct sherd_config config;
    char start[80];
    snprintf(start, sizeof(start), "t.yaml:3: %s: ", key->path);
    ASSERT_FAILS(parse_key(&config, key->path, value, NULL), SHERD_ECONFIG, message);
    if (strncmp(sherd_error(), start, strlen(start)) != 0)
        fail_msg("'%s' does not begin with '%s'", sherd_error(), start);
    assert_null(config.origin);
}

static void each_letter_changed_is_refused_with_the_right_key(void **state)
{
    (void)state;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        for (size_t c = 0; key->path[c]; c++) {
            char path[64], want[160];
            const char *dot = strchr(key->path, '.');
            size_t section = (size_t)(dot - key->path);
            if (c == section ||
                isdigit((unsigned char)key->path[c])) /* beta1 and beta2 differ in no letter */
                continue;
            snprintf(path, sizeof(path), "%s", key->path);
            path[c] = path[c] == 'q' ? 'x' : 'q';
            struct sherd_config config;
            if (c < section)
                snprintf(want, sizeof(want), "t.yaml:2: %.*s: unknown key; did you mean %.*s?", (int)section,
                    path, (int)section, key->path);
            else
                snprintf(want, sizeof(want), "t.yaml:3: %s: unknown key; did you mean %s?", path, key->path);
            ASSERT_FAILS(parse_key(&config, path, "1", NULL), SHERD_ECONFIG, want);

            char set[80];
            const char *override = set;
            snprintf(set, sizeof(set), "%s=1", path);
            snprintf(want, sizeof(want), "--set: %s: unknown key; did you mean %s?", path, key->path);
            ASSERT_FAILS(sherd_config_parse(&config, "", 0, "t.yaml", &override, 1, 0), SHERD_ECONFIG, want);
        }
    }
}

static void each_key_refuses_other_types(void **state)
{
    (void)state;
    static const struct {
        unsigned types; /* bits of enum key_type that refuse this */
        const char *value, *message;
    } wrong[] = {
#define NUMBERS (1u << KEY_INT | 1u << KEY_REAL | 1u << KEY_SECONDS)
#define ALL 0xffu
        { ALL, "{a: 1}", ", not a map" },
        { ALL & ~(1u << KEY_TEXTS), "[1, 2]", ", not a list" },
        { ALL, "", "has no value" },
        { ALL, "~", "has no value" },
        { ALL, "null", "has no value" },
        { NUMBERS | 1u << KEY_BOOL | 1u << KEY_CHOICE, "seven", ", not 'seven'" },
        { NUMBERS, "nan", ", not 'nan'" },
        { NUMBERS, "inf", ", not 'inf'" },
        { NUMBERS, "1 2", ", not '1 2'" },
        { NUMBERS, "0x10", ", not '0x10'" },
        { NUMBERS, "\"1\"", "; remove the quotes" },
        { 1u << KEY_INT, "1.5", ", not '1.5'" },
        { 1u << KEY_INT, "1e-4", ", not '1e-4'" },
        { 1u << KEY_INT | 1u << KEY_REAL, "true", ", not 'true'" },
        { 1u << KEY_BOOL, "2", "true or false" },
        { 1u << KEY_BOOL, "'true'", "; remove the quotes" },
        { 1u << KEY_TEXT | 1u << KEY_CHOICE, "''", ", not ''" },
        { 1u << KEY_TEXTS, "[a, '']", "entry 2 is empty" },
        { 1u << KEY_TEXTS, "[~]", "entry 1 is empty" },
    };
    for (int i = 0; i < key_count(); i++)
        for (size_t w = 0; w < ARRAY_LEN(wrong); w++)
            if (wrong[w].types & 1u << key_at(i)->type)
                expect_line_3(key_at(i), wrong[w].value, wrong[w].message);
}

static void each_key_refuses_what_is_out_of_range(void **state)
{
    (void)state;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        char value[40], message[64];
        if (key->type > KEY_SECONDS)
            continue;
        const double beyond[] = { key->min - 1, key->max * 2 + 1, key->flags & KEY_ABOVE ? key->min : NAN,
            key->flags & KEY_BELOW ? key->max : NAN };
        for (size_t b = 0; b < ARRAY_LEN(beyond); b++) {
            if (isnan(beyond[b]))
                continue;
            snprintf(value, sizeof(value), "%.17g", beyond[b]);
            snprintf(message, sizeof(message), ", not '%s'", value);
            expect_line_3(key, value, message);
        }
        expect_line_3(key, "1e400", ", not '1e400'");
    }
}

/* "auto" is taken exactly where it means something. */
static void auto_where_a_value_can_be_derived(void **state)
{
    (void)state;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        struct sherd_config config;
        char value[128];
        if (key->type > KEY_BOOL)
            continue;
        if (!(key->flags & (KEY_ZERO | KEY_AUTO))) {
            expect_line_3(key, "auto", ", not 'auto'");
            continue;
        }
        ASSERT_OK(parse_key(&config, key->path, "auto", NULL));
        shown(key, &config, value);
        assert_true(key->flags & KEY_ZERO ? strcmp(value, "auto") == 0 : value[0] != '-');
        sherd_config_free(&config);
    }
}

static void names_elsewhere_are_suggested(void **state)
{
    (void)state;
    static const struct {
        const char *theirs, *ours;
    } pairs[] = {
        { "lr", "optim.lr" },
        { "stage", "shard.stage" },
        { "model.stage", "shard.stage" },
        { "train.seed", "run.seed" },
        { "optim.lrr", "optim.lr" },
        { "optimm", "optim" },
        { "shard.stge", "shard.stage" },
        { "train_batch_size", "batch.global" },
        { "batch.train_micro_batch_size_per_gpu", "batch.micro" },
        { "zero_optimization", "shard.stage" },
        { "model.vocab_size", "model.vocab" },
        { "learning_rate", "optim.lr" },
        { "data_seed", "data.split_seed" },
        { "save_strategy", "save.every" },
        { "per_device_eval_batch_size", "batch.micro" },
        { "metric_for_best_model", "save.keep_best" },
        { "logging_first_step", "log.every" },
        { "weight_decay", "optim.weight_decay" },
        { "warmup_ratio", "schedule.warmup" },
        { "eval_steps", "train.eval_every" },
        { "save.load_best_model_at_end", "save.keep_best" },
        { "report_to", "log.tensorboard" },
        { "resume_from_checkpoint", "run.resume" },
        { "training.local_batch_size", "batch.micro" },
        { "model_type", "model.from" },
        { "model_name_or_path", "model.from" },
    };
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        assert_non_null(key_suggest(pairs[i].theirs));
        assert_string_equal(key_suggest(pairs[i].theirs), pairs[i].ours);
    }
    assert_null(key_suggest("nothing_like_it"));
    assert_null(key_suggest("model.nothing_like_it"));
    assert_null(key_suggest(""));
    assert_null(key_suggest("."));
}

static void texts_are_quoted_where_needed(void **state)
{
    (void)state;
    static const char *const texts[] = { "a", "a b", "", "null", "~", "-", "- a", "a: b", "a #b", "[a]",
        "{a}", "*x", "&x", "!x", "'a'", "\"a\"", "back\\slash", "line\nbreak", "tab\there", "\x7f",
        "\xc3\xa4", "1e5", "a,b",
        "\xc2\x85"
        "x",
        "\xe2\x80\xa8"
        "x",
        "\xef\xbb\xbf", "\xef\xbf\xbf", "\xf0\x9f\x98\x80", "%x", "@x", "?", ":", "a/b-c_d.e+f" };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct text t = { 0 };
        struct yaml_tree tree;
        char *s;
        text_add(&t, "k: [");
        key_quote(texts[i], &t);
        text_add(&t, "]\n");
        ASSERT_OK(text_take(&t, &s));
        ASSERT_OK(yaml_tree_read(&tree, s, strlen(s), "t.yaml"));
        const struct yaml_node *n = tree.root->first->first;
        assert_non_null(n);
        assert_string_equal(n->value, texts[i]);
        assert_false(yaml_is_null(n));
        yaml_tree_finish(&tree);
        mem_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_in_order),
        cmocka_unit_test(each_key_sets_the_field_it_names),
        cmocka_unit_test(each_letter_changed_is_refused_with_the_right_key),
        cmocka_unit_test(each_key_refuses_other_types),
        cmocka_unit_test(each_key_refuses_what_is_out_of_range),
        cmocka_unit_test(auto_where_a_value_can_be_derived),
        cmocka_unit_test(names_elsewhere_are_suggested),
        cmocka_unit_test(texts_are_quoted_where_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

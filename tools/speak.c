/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where settings, weights and tokenizer come from.
 */
#include "tools/speak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/args.h"
#include "tools/out.h"

#define BYTE_VOCAB_MOST 257 /* with a token that ends documents */
#define PATH_MOST 4096

/* One rank, one row, nothing trained. */
static const char *const overrides[] = { "model.freeze=[\"*\"]", "shard.stage=0", "batch.global=1",
    "batch.micro=1", "batch.accum=1", "train.recompute=none" };

/* The settings of the run, as the checkpoint keeps them. */
static int config_from_checkpoint(struct speak *s)
{
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    int st = sherd_ckpt_open(&ckpt, s->weights), code = EXIT_OK;
    if (st != SHERD_OK)
        return out_fail(st);
    sherd_ckpt_info_of(ckpt, &info);
    json_t *extra = info.extra ? json_loads(info.extra, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(extra, "config"));
    if (!text) {
        code = out_refuse("%s keeps no configuration; name it with --config", s->weights);
    } else {
        st =
            sherd_config_parse(&s->config, text, strlen(text), s->weights, overrides, COUNT_OF(overrides), 0);
        code = st == SHERD_OK ? EXIT_OK : out_fail(st);
    }
    json_decref(extra);
    sherd_ckpt_close(ckpt);
    return code;
}

/* The folder that the checkpoint lies in. */
static int keep_run(struct speak *s)
{
    const char *slash = strrchr(s->weights, '/');
    s->run = slash ? strndup(s->weights, slash > s->weights ? (size_t)(slash - s->weights) : 1) : strdup(".");
    return s->run ? SHERD_OK : sherd_fail(SHERD_ENOMEM, "no memory for a path");
}

static int read_config(struct speak *s, const struct speak_desc *d)
{
    int st = SHERD_OK;
    s->is_folder = sherd_weights_found(d->path);
    if (s->is_folder) {
        struct sherd_config_desc desc = {
            .path = d->config, .model = d->path, .overrides = overrides, .n_overrides = COUNT_OF(overrides)
        };
        s->weights = strdup(d->path);
        st = s->weights ? sherd_config_read(&s->config, &desc)
                        : sherd_fail(SHERD_ENOMEM, "no memory for a path");
        return st == SHERD_OK ? EXIT_OK : out_fail(st);
    }
    if (access(d->path, F_OK) != 0)
        return out_fail(sherd_fail(SHERD_ENOTFOUND,
            "%s: no such folder; name a run folder, a step folder, or the folder of a Hugging Face model (nothing is "
            "downloaded)",
            d->path));
    st = sherd_ckpt_find(&s->weights, d->path);
    if (st == SHERD_OK)
        st = keep_run(s);
    if (st == SHERD_OK && d->config)
        st = sherd_config_load(&s->config, d->config, overrides, COUNT_OF(overrides), 0);
    if (st != SHERD_OK)
        return out_fail(st);
    return d->config ? EXIT_OK : config_from_checkpoint(s);
}

/* 1, and opens it, if the folder has a tokenizer; a broken one is an error in *st. */
static int try_folder(struct speak *s, const char *folder, int *st)
{
    char path[PATH_MOST];
    if (!folder || *st != SHERD_OK || s->tokenizer ||
        snprintf(path, sizeof(path), "%s/tokenizer.json", folder) >= (int)sizeof(path) ||
        access(path, R_OK) != 0)
        return 0;
    *st = sherd_tokenizer_open(&s->tokenizer, path);
    return 1;
}

/* In the folder of the model or run, where the run began, where its data is; a vocabulary as small as that is
 * of bytes. */
static int find_tokenizer(struct speak *s, const struct speak_desc *d)
{
    const struct sherd_config *c = &s->config;
    int st = SHERD_OK;
    if (d->tokenizer)
        st = sherd_tokenizer_open(&s->tokenizer, d->tokenizer);
    try_folder(s, d->path, &st);
    if (!s->is_folder) {
        try_folder(s, s->run, &st);
        try_folder(s, c->run.dir, &st);
        try_folder(s, c->model.from, &st);
        for (int i = 0; i < c->data.train.n; i++)
            try_folder(s, c->data.train.items[i], &st);
    }
    int is_bytes = c->model.vocab <= BYTE_VOCAB_MOST || c->data.format == SHERD_DATA_BYTES;
    if (st == SHERD_OK && !s->tokenizer && c->model.vocab >= 256 && is_bytes)
        st = sherd_tokenizer_open(&s->tokenizer, "bytes");
    if (st != SHERD_OK)
        return out_fail(st);
    if (!s->tokenizer)
        return out_refuse(
            "%s: no tokenizer.json lies beside the model, in model.from or with the data, and a vocabulary "
            "of %lld is not that of bytes; name one with --tokenizer",
            d->path, (long long)c->model.vocab);
    s->vocab = sherd_tokenizer_vocab(s->tokenizer);
    if (s->vocab > c->model.vocab && s->vocab > BYTE_VOCAB_MOST)
        return out_refuse(
            "the tokenizer has %lld tokens, but the model knows %lld: it is that of another model",
            (long long)s->vocab, (long long)c->model.vocab);
    s->vocab = s->vocab < c->model.vocab ? s->vocab : c->model.vocab;
    return EXIT_OK;
}

static void add_end(struct speak *s, json_int_t id)
{
    if (id >= 0 && id < s->vocab && s->n_ends < SPEAK_ENDS)
        s->ends[s->n_ends++] = (int32_t)id;
}

/* A number or a list of numbers, in the file of a model folder. */
static int read_ends(struct speak *s, const char *folder, const char *file)
{
    char path[PATH_MOST];
    if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
        return EXIT_OK;
    if (out_check_file(path) != SHERD_OK)
        return out_fail(SHERD_EIO);
    json_t *root = json_load_file(path, 0, NULL), *id = json_object_get(root, "eos_token_id");
    if (json_is_integer(id))
        add_end(s, json_integer_value(id));
    for (size_t i = 0; i < json_array_size(id); i++)
        if (json_is_integer(json_array_get(id, i)))
            add_end(s, json_integer_value(json_array_get(id, i)));
    json_decref(root);
    return EXIT_OK;
}

int speak_open(struct speak *s, const struct speak_desc *d)
{
    *s = (struct speak){ 0 };
    int code = read_config(s, d);
    if (code == EXIT_OK)
        code = find_tokenizer(s, d);
    if (code != EXIT_OK)
        return code;
    add_end(s, sherd_tokenizer_end(s->tokenizer));
    const char *folder = s->is_folder ? d->path : s->run;
    code = read_ends(s, folder, "config.json");
    return code == EXIT_OK ? read_ends(s, folder, "generation_config.json") : code;
}

int speak_start(struct speak *s, const struct speak_desc *d, int64_t seq)
{
    s->config.batch.seq = seq;
    int st = sherd_config_model(&s->model, &s->config);
    if (st == SHERD_OK)
        st = sherd_device_open(
            &s->device, &(struct sherd_device_desc){ .name = d->device ? d->device : "cpu" });
    if (st == SHERD_OK)
        st = sherd_engine_create_blank(&s->engine,
            &(struct sherd_engine_desc){ .config = &s->config, .model = s->model, .device = s->device });
    if (st == SHERD_OK)
        st = s->is_folder ? sherd_engine_import(s->engine, s->weights, NULL)
                          : sherd_engine_load(s->engine, s->weights);
    return st == SHERD_OK ? EXIT_OK : out_fail(st);
}

void speak_close(struct speak *s)
{
    sherd_engine_destroy(s->engine);
    sherd_model_destroy(s->model);
    sherd_device_close(s->device);
    sherd_tokenizer_close(s->tokenizer);
    sherd_config_free(&s->config);
    free(s->weights);
    free(s->run);
}

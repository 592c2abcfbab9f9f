/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd sample: let a model of bytes write text, to see what it has learnt. One rank on the CPU; the whole
 * window is recomputed for every byte, which is simple and slow.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

#define BYTES 256
#define MOST_WINDOW 1024   /* of a model folder: what a model can take may be far more */
#define MAX_BYTE_VOCAB 512 /* above it the ids are those of a tokenizer */

struct sample {
    const char *dir, *config_path, *prompt;
    int64_t n, seed;
    double temperature;
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_device *device;
    struct sherd_engine *engine;
    int32_t *window, *targets; /* [seq] */
    float *logits;             /* [seq, vocab] */
    int64_t len;               /* bytes in the window */
};

/* The settings of the run, as the checkpoint keeps them. */
static int config_from_checkpoint(struct sample *s, const char *path)
{
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    int st = sherd_ckpt_open(&ckpt, path);
    if (st != SHERD_OK)
        return out_fail(st);
    sherd_ckpt_info_of(ckpt, &info);
    json_t *extra = info.extra ? json_loads(info.extra, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(extra, "config"));
    int code = EXIT_OK;
    if (!text) {
        code = out_refuse("%s keeps no configuration; name it with --config", path);
    } else {
        st = sherd_config_parse(&s->config, text, strlen(text), path, NULL, 0, 0);
        code = st == SHERD_OK ? EXIT_OK : out_fail(st);
    }
    json_decref(extra);
    sherd_ckpt_close(ckpt);
    return code;
}

/* A model folder: the settings are those of its config.json. */
static int config_from_model(struct sample *s)
{
    char from[4096];
    const char *const set[] = { from };
    if (snprintf(from, sizeof(from), "model.from=%s", s->dir) >= (int)sizeof(from))
        return out_refuse("%s: the path is too long", s->dir);
    int st = sherd_config_load(&s->config, "/dev/null", set, 1, 0);
    if (st != SHERD_OK)
        return out_fail(st);
    if (s->config.batch.seq > MOST_WINDOW)
        s->config.batch.seq = MOST_WINDOW;
    return EXIT_OK;
}

static int check_bytes(const struct sherd_config *c)
{
    if (c->data.format == SHERD_DATA_LLMC || c->data.format == SHERD_DATA_U16 || c->model.vocab < BYTES ||
        c->model.vocab > MAX_BYTE_VOCAB)
        return out_refuse(
            "'sherd sample' knows models of bytes only (data.format: bytes, model.vocab: 256)%s", "");
    return EXIT_OK;
}

static int open_engine(struct sample *s, const char *path)
{
    struct sherd_config *c = &s->config;
    c->shard.stage = 0;
    c->batch.micro = 1;
    c->batch.accum = 1;
    c->batch.global = 1;
    int st = sherd_config_model(&s->model, c);
    if (st == SHERD_OK)
        st = sherd_device_open(&s->device, &(struct sherd_device_desc){ .name = "cpu" });
    if (st == SHERD_OK)
        st = sherd_engine_create(
            &s->engine, &(struct sherd_engine_desc){ .config = c, .model = s->model, .device = s->device });
    if (st == SHERD_OK)
        st = path ? sherd_engine_load(s->engine, path) : sherd_engine_import(s->engine, s->dir, NULL);
    if (st != SHERD_OK)
        return out_fail(st);
    size_t seq = (size_t)c->batch.seq;
    s->window = calloc(seq, sizeof(*s->window));
    s->targets = malloc(seq * sizeof(*s->targets));
    s->logits = malloc(seq * (size_t)c->model.vocab * sizeof(*s->logits));
    if (!s->window || !s->targets || !s->logits)
        return out_refuse("no memory for a window of this model");
    for (size_t i = 0; i < seq; i++)
        s->targets[i] = -1;
    return EXIT_OK;
}

/* Text as it is, all else as \xNN. */
static void print_byte(int b)
{
    if (b == '\n' || b == '\t' || (b >= ' ' && b < 127))
        putchar(b);
    else
        printf("\\x%02x", (unsigned)b);
}

static void push(struct sample *s, int byte)
{
    int64_t seq = s->config.batch.seq;
    if (s->len == seq) {
        memmove(s->window, s->window + 1, (size_t)(seq - 1) * sizeof(*s->window));
        s->len--;
    }
    s->window[s->len++] = byte;
}

/* Uniform in [0, 1): SplitMix64. */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int choose(const float *logits, double temperature, uint64_t *state)
{
    double weight[BYTES], sum = 0;
    int top = 0;
    for (int i = 1; i < BYTES; i++)
        top = logits[i] > logits[top] ? i : top;
    if (temperature <= 0)
        return top;
    for (int i = 0; i < BYTES; i++)
        sum += weight[i] = exp((double)(logits[i] - logits[top]) / temperature);
    double left = draw(state) * sum;
    for (int i = 0; i < BYTES; i++)
        if ((left -= weight[i]) < 0)
            return i;
    return top;
}

static int write_text(struct sample *s)
{
    uint64_t state = (uint64_t)s->seed;
    for (const char *p = s->prompt; *p; p++) {
        push(s, (unsigned char)*p);
        print_byte((unsigned char)*p);
    }
    for (int64_t i = 0; i < s->n; i++) {
        struct sherd_batch batch = { s->window, s->targets, 1 };
        int st = sherd_engine_logits(s->engine, &batch, s->logits);
        if (st != SHERD_OK)
            return out_fail(st);
        int byte = choose(s->logits + (s->len - 1) * s->config.model.vocab, s->temperature, &state);
        push(s, byte);
        print_byte(byte);
    }
    putchar('\n');
    return EXIT_OK;
}

static int run(struct sample *s)
{
    char *path = NULL;
    int model = sherd_weights_found(s->dir), st = model ? SHERD_OK : sherd_ckpt_find(&path, s->dir);
    if (st == SHERD_OK && s->config_path)
        st = sherd_config_load(&s->config, s->config_path, NULL, 0, 0);
    if (st != SHERD_OK)
        return out_fail(st);
    int code = EXIT_OK;
    if (!s->config_path)
        code = model ? config_from_model(s) : config_from_checkpoint(s, path);
    if (code == EXIT_OK)
        code = check_bytes(&s->config);
    if (code == EXIT_OK)
        code = open_engine(s, path);
    if (code == EXIT_OK)
        code = write_text(s);
    free(path);
    return code;
}

int cmd_sample(int argc, char **argv)
{
    struct sample s = { .prompt = "\n", .n = 200, .seed = 1, .temperature = 0.8 };
    const struct arg args[] = {
        { "prompt", ARG_TEXT, &s.prompt, "TEXT", "what the text begins with (default: a new line)" },
        { "tokens", ARG_INT, &s.n, "N", "bytes to write (default 200)", .min = 1, .max = 1e9 },
        { "temperature", ARG_REAL, &s.temperature, "T", "0 takes the likeliest byte each time (default 0.8)",
            .min = 0, .max = 100 },
        { "seed", ARG_INT, &s.seed, "S", "the same seed writes the same text (default 1)", .min = 0,
            .max = 1e15 },
        { "config", ARG_TEXT, &s.config_path, "FILE",
            "use these settings, not those kept in the checkpoint" },
    };
    const struct command command = { "sample", "DIR", 1, 1,
        "Lets a model that was trained on bytes write text.",
        "DIR is a run folder (its newest complete checkpoint is taken), one step folder, or a model folder as\n"
        "'sherd merge' makes it. Bytes that are no printable text are shown as \\xNN.",
        args, COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &s.dir);
    if (code >= 0)
        return code;
    if (!s.prompt[0])
        return args_mistake("sample", "--prompt: the text to begin with is empty");
    code = run(&s);
    sherd_engine_destroy(s.engine);
    sherd_model_destroy(s.model);
    sherd_device_close(s.device);
    sherd_config_free(&s.config);
    free(s.window);
    free(s.targets);
    free(s.logits);
    return code;
}

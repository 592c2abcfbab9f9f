/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd generate: lets a model go on with a text, to see what it has learnt. The whole window is computed
 * anew for every token, which is simple and slow.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"
#include "tools/speak.h"

struct generate {
    struct speak_desc desc;
    const char *prompt;
    int64_t tokens, seed;
    double temperature, top_p;
    struct speak speak;
    int32_t *window, *targets; /* [seq] */
    float *logits;             /* [seq, vocab] */
    int64_t seq, len;          /* of the window; tokens in it */
    struct choice *choices;    /* [vocab] */
    uint64_t random;
    uint8_t part[4]; /* the beginning of a character */
    int part_n;
};

struct choice {
    double weight;
    int32_t id;
};

/* Bytes that are no text are shown as \xNN. */
static void print_odd(const uint8_t *s, int n)
{
    for (int i = 0; i < n; i++)
        printf("\\x%02x", (unsigned)s[i]);
}

/* Text as it is, characters of several bytes as soon as they are whole. */
static void print_byte(struct generate *g, uint8_t b)
{
    int size = g->part_n == 0 ? 0 : g->part[0] >= 0xf0 ? 4 : g->part[0] >= 0xe0 ? 3 : 2;
    if (g->part_n > 0 && (b & 0xc0) == 0x80) {
        g->part[g->part_n++] = b;
        if (g->part_n == size) {
            fwrite(g->part, 1, (size_t)size, stdout);
            g->part_n = 0;
        }
        return;
    }
    print_odd(g->part, g->part_n);
    g->part_n = 0;
    if (b >= 0xc2 && b <= 0xf4)
        g->part[g->part_n++] = b;
    else if (b == '\n' || b == '\t' || (b >= ' ' && b < 127))
        putchar(b);
    else
        print_odd(&b, 1);
}

static int print_token(struct generate *g, int32_t id)
{
    const uint8_t *bytes;
    size_t n;
    int st = sherd_tokenizer_token(g->speak.tokenizer, id, &bytes, &n);
    if (st != SHERD_OK)
        return out_fail(st);
    for (size_t i = 0; i < n; i++)
        print_byte(g, bytes[i]);
    fflush(stdout);
    return EXIT_OK;
}

/* Uniform in [0, 1): SplitMix64. */
static double draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int likelier(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The likeliest token; or one drawn from the likeliest that together have top_p of the probability. */
static int32_t choose(struct generate *g, const float *logits)
{
    int32_t top = 0, vocab = (int32_t)g->speak.vocab;
    double sum = 0, kept = 0;
    int32_t n = 0;
    for (int32_t i = 1; i < vocab; i++)
        top = logits[i] > logits[top] ? i : top;
    if (g->temperature <= 0)
        return top;
    for (int32_t i = 0; i < vocab; i++) {
        double weight = exp((double)(logits[i] - logits[top]) / g->temperature);
        g->choices[i] = (struct choice){ weight, i };
        sum += weight;
    }
    qsort(g->choices, (size_t)vocab, sizeof(*g->choices), likelier);
    while (n < vocab && (n == 0 || kept < g->top_p * sum))
        kept += g->choices[n++].weight;
    double left = draw(&g->random) * kept;
    for (int32_t i = 0; i < n; i++)
        if ((left -= g->choices[i].weight) < 0)
            return g->choices[i].id;
    return top;
}

static int is_end(const struct speak *s, int32_t id)
{
    for (int i = 0; i < s->n_ends; i++)
        if (s->ends[i] == id)
            return 1;
    return 0;
}

static int go_on(struct generate *g)
{
    int64_t vocab = g->speak.config.model.vocab, context = g->speak.config.model.context;
    for (int64_t i = 0; i < g->tokens; i++) {
        struct sherd_batch batch = { g->window, g->targets, 1 };
        if (g->len == g->seq) {
            print_odd(g->part, g->part_n);
            g->part_n = 0;
            printf("\n");
            fflush(stdout);
            fprintf(stderr,
                "sherd: the model's context of %lld tokens is full: %lld of %lld tokens written\n",
                (long long)context, (long long)i, (long long)g->tokens);
            return EXIT_OK;
        }
        int st = sherd_engine_logits(g->speak.engine, &batch, g->logits);
        if (st != SHERD_OK)
            return out_fail(st);
        int32_t id = choose(g, g->logits + (g->len - 1) * vocab);
        if (is_end(&g->speak, id))
            break;
        g->window[g->len++] = id;
        int code = print_token(g, id);
        if (code != EXIT_OK)
            return code;
    }
    print_odd(g->part, g->part_n);
    printf("\n");
    return EXIT_OK;
}

/* The prompt as the beginning of the window, and room for what follows it. */
static int take_prompt(struct generate *g)
{
    const struct sherd_config *c = &g->speak.config;
    int32_t *ids;
    int64_t n;
    int st = sherd_tokenizer_encode(g->speak.tokenizer, g->prompt, strlen(g->prompt), 1, &ids, &n);
    if (st != SHERD_OK)
        return out_fail(sherd_fail(st, "--prompt: %s", sherd_error()));
    int code = EXIT_OK;
    if (n == 0)
        code = out_refuse("--prompt: the text to begin with is empty");
    else if (n >= c->model.context)
        code = out_refuse(
            "--prompt: it has %lld tokens, and the model's context of %lld leaves no room to go on",
            (long long)n, (long long)c->model.context);
    if (code == EXIT_OK) {
        g->seq = c->model.context < n + g->tokens ? c->model.context : n + g->tokens;
        size_t seq = (size_t)g->seq;
        g->window = calloc(seq, sizeof(*g->window));
        g->targets = malloc(seq * sizeof(*g->targets));
        g->logits = malloc(seq * (size_t)c->model.vocab * sizeof(*g->logits));
        g->choices = malloc((size_t)c->model.vocab * sizeof(*g->choices));
        if (!g->window || !g->targets || !g->logits || !g->choices)
            code = out_refuse(
                "no memory for a window of %lld tokens; ask for fewer with --tokens", (long long)g->seq);
    }
    for (int64_t i = 0; code == EXIT_OK && i < g->seq; i++) {
        g->targets[i] = -1;
        g->window[i] = i < n ? ids[i] : 0;
    }
    g->len = n;
    free(ids);
    return code;
}

static int run(struct generate *g)
{
    int code = speak_open(&g->speak, &g->desc);
    if (code == EXIT_OK)
        code = take_prompt(g);
    if (code == EXIT_OK)
        code = speak_start(&g->speak, &g->desc, g->seq);
    if (code != EXIT_OK)
        return code;
    for (const char *p = g->prompt; *p; p++)
        print_byte(g, (uint8_t)*p);
    g->random = (uint64_t)g->seed;
    return go_on(g);
}

int cmd_generate(int argc, char **argv)
{
    struct generate g = { .tokens = 100, .seed = 1, .top_p = 1 };
    const struct arg args[] = {
        { "prompt", ARG_TEXT, &g.prompt, "TEXT", "what the text begins with" },
        { "tokens", ARG_INT, &g.tokens, "N", "tokens to write at most (default 100)", .min = 1, .max = 1e9 },
        { "temperature", ARG_REAL, &g.temperature, "T",
            "0 takes the likeliest token each time (default); 1 draws as the model has it", .min = 0,
            .max = 100 },
        { "top-p", ARG_REAL, &g.top_p, "P",
            "draw among the likeliest tokens that have P of the probability (default 1)", .min = 0,
            .max = 1 },
        { "seed", ARG_INT, &g.seed, "S", "the same seed writes the same text (default 1)", .min = 0,
            .max = 1e15 },
        { "device", ARG_TEXT, &g.desc.device, "NAME", "cpu (default) or cuda" },
        { "tokenizer", ARG_TEXT, &g.desc.tokenizer, "PATH",
            "a tokenizer.json, the folder of one, or bytes\n(default: that of the model or of its data)" },
        { "config", ARG_TEXT, &g.desc.config, "FILE",
            "use these settings, not those kept in the checkpoint" },
    };
    const struct command command = { "generate", "MODEL", 1, 1, "Lets a model go on with a text.",
        "MODEL is a run folder (its newest complete checkpoint is taken), one step folder, or the folder of a Hugging\n"
        "Face model. The text ends after N tokens, at a token that ends texts, or where the model's context is full.\n"
        "Bytes that are no printable text are shown as \\xNN.",
        args, COUNT_OF(args) };
    int code = args_parse(&command, argc, argv, &g.desc.path);
    if (code >= 0)
        return code;
    if (!g.prompt)
        return args_mistake("generate", "--prompt is missing: the text to begin with");
    out_quiet();
    code = run(&g);
    speak_close(&g.speak);
    free(g.window);
    free(g.targets);
    free(g.logits);
    free(g.choices);
    return code;
}

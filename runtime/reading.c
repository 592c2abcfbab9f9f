/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * From the section data of the settings to feeds.
 */
#include "runtime/reading.h"

#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/companions.h"

#define WEIGHT_MOST 1e6

int reading_weights(const struct sherd_config *c, double **out)
{
    int n = c->data.weights.n;
    *out = NULL;
    if (n == 0)
        return SHERD_OK;
    if (n != c->data.train.n)
        return CONFIG_FAIL(c, "data.weights", "%d weights for the %d paths of data.train; give one for each",
            n, c->data.train.n);
    double *weights = mem_zalloc((size_t)n, sizeof(*weights));
    if (!weights)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++)
        if (text_double(c->data.weights.items[i], &weights[i]) != SHERD_OK || weights[i] <= 0 ||
            weights[i] > WEIGHT_MOST) {
            mem_free(weights);
            return CONFIG_FAIL(c, "data.weights",
                "'%.60s' is no number above 0: it says how often an epoch goes through %s (0.5: half of it)",
                c->data.weights.items[i], c->data.train.items[i]);
        }
    *out = weights;
    return SHERD_OK;
}

static struct tokens_desc describe(
    const struct sherd_config *c, const char *what, const struct sherd_texts *paths, int rank)
{
    return (struct tokens_desc){ .what = what,
        .paths = (const char *const *)paths->items,
        .n_paths = paths->n,
        .format = c->data.format,
        .vocab = c->model.vocab,
        .quiet = rank != 0 };
}

/* A model with a tokenizer knows nothing of bytes: text that was not made into its tokens is not read unless
 * that is said. */
static int check_text(
    const struct tokens *tokens, const struct sherd_config *c, const char *key, const char *folder)
{
    int val = strcmp(key, "data.val") == 0;
    if (!tokens_are_bytes(tokens) || c->data.format == SHERD_DATA_BYTES ||
        !file_has(folder, COMPANION_TOKENIZER))
        return SHERD_OK;
    return CONFIG_FAIL(c, key,
        "%s is text, but the model in %s knows the tokens of its tokenizer: run `sherd tokenize --tokenizer %s -o DIR "
        "FILES` and name the folder DIR here; data.format: bytes %s the bytes of the text",
        (val ? &c->data.val : &c->data.train)->items[0], folder, folder, val ? "evaluates on" : "trains on");
}

int reading_check_eval(const struct reading *r, const struct sherd_config *c, const char *folder)
{
    return check_text(r->eval.tokens, c, r->val ? "data.val" : "data.train", folder);
}

/* What is evaluated on is of the kind that is trained on. */
static int check_alike(const struct reading *r, const struct sherd_config *c)
{
    static const char *const kinds[] = { "token ids", "bytes" };
    int trains = tokens_are_bytes(r->train), evaluates = tokens_are_bytes(r->val);
    if (trains == evaluates)
        return SHERD_OK;
    return CONFIG_FAIL(c, "data.val",
        "%s is read as %s, but %s of data.train as %s: make both with one tokenizer", c->data.val.items[0],
        kinds[evaluates], c->data.train.items[0], kinds[trains]);
}

/* Samples of an epoch. */
static int open_train(struct reading *r, const struct sherd_config *c, int rank, int64_t *windows)
{
    struct tokens_desc desc = describe(c, "data.train", &c->data.train, rank);
    double *weights;
    SHERD_TRY(tokens_open(&r->train, &desc));
    if (config_has_from(c))
        SHERD_TRY(check_text(r->train, c, "data.train", c->model.from));
    SHERD_TRY(tokens_windows(r->train, c->batch.seq, windows));
    SHERD_TRY(reading_weights(c, &weights));
    if (!weights && c->data.split <= 0)
        return SHERD_OK;
    int st = mix_init(&r->mix, r->train, &desc, weights, c->data.split, c->batch.seq);
    mem_free(weights);
    r->mix.split_seed = (uint64_t)c->data.split_seed;
    *windows = r->mix.draws;
    return st;
}

/* What is evaluated on: files of its own, or what is held out of those to train on. */
static int choose_eval(struct reading *r, const struct sherd_config *c)
{
    struct tokens_desc desc = describe(c, "data.val", &c->data.val, r->feed.rank);
    r->eval = r->feed;
    if (c->data.val.n == 0) {
        r->eval.held = 1;
        r->eval.sampler.windows = r->mix.held;
        return SHERD_OK;
    }
    r->eval.mix = NULL;
    desc.strict = r->apart;
    SHERD_TRY(tokens_open(&r->val, &desc));
    r->eval.tokens = r->val;
    return tokens_windows(r->val, c->batch.seq, &r->eval.sampler.windows);
}

static int open_eval(struct reading *r, const struct sherd_config *c)
{
    r->evaluates = c->train.eval_every > 0 && (c->data.val.n > 0 || r->mix.held > 0);
    if (!r->evaluates)
        return SHERD_OK;
    SHERD_TRY(choose_eval(r, c));
    return r->val ? check_alike(r, c) : SHERD_OK;
}

/* A folder with files to train on and to evaluate on, as many have it, holds both. */
static int warn_shared(const struct reading *r)
{
    const char *path = NULL;
    if (r->val)
        SHERD_TRY(tokens_shared(r->train, r->val, &path));
    if (path)
        log_warn(
            "data.val: %s is in data.train too: the validation loss is of what is trained on; name the files to "
            "train on apart",
            path);
    return SHERD_OK;
}

/* Rank 0 tells what the files alone do not show. */
static void tell(const struct reading *r, const struct sherd_config *c)
{
    char a[32], b[32];
    int64_t windows = 0;
    for (int i = 0; i < r->mix.n; i++)
        windows += r->mix.sources[i].windows;
    for (int i = 0; i < r->mix.n && c->data.weights.n; i++)
        log_info("data.train: %s: %s samples, %s of them in an epoch", c->data.train.items[i],
            text_commas(r->mix.sources[i].windows, a), text_commas(r->mix.sources[i].draws, b));
    if (r->mix.held > 0)
        log_info("data.split: %s samples held out of %s, %s", text_commas(r->mix.held, a),
            text_commas(r->mix.held + windows, b),
            c->data.split_seed ? "at random by data.split_seed" : "those at the end");
}

static struct feed make_feed(const struct reading *r, const struct sherd_config *c, int rank, int world)
{
    return (struct feed){ .tokens = r->train,
        .sampler = { .seed = (uint64_t)c->run.seed, .shuffle = c->data.shuffle },
        .mix = r->mix.n ? &r->mix : NULL,
        .has_end = c->data.end >= 0,
        .end = (int32_t)c->data.end,
        .seq = c->batch.seq,
        .global = c->batch.global,
        .micro = c->batch.micro,
        .rank = rank,
        .world = world };
}

int reading_open(struct reading *r, struct sherd_config *c, int rank, int world)
{
    int64_t windows;
    SHERD_TRY(open_train(r, c, rank, &windows));
    r->feed = make_feed(r, c, rank, world);
    r->feed.sampler.windows = windows;
    r->feed.total = c->train.steps ? 0 : c->train.epochs * windows;
    SHERD_TRY(feed_check(&r->feed));
    if (c->train.steps == 0)
        c->train.steps = feed_steps(&r->feed);
    SHERD_TRY(config_check_steps(c, c->train.steps));
    SHERD_TRY(open_eval(r, c));
    if (rank != 0)
        return SHERD_OK;
    tell(r, c);
    return warn_shared(r);
}

int reading_open_eval(struct reading *r, const struct sherd_config *c, int rank, int world)
{
    int64_t windows;
    int held = c->data.val.n == 0;
    if (held && c->data.split <= 0)
        return CONFIG_FAIL(c, "data.val",
            "there is nothing to evaluate on: name files or folders, as data.val: [PATH] or --data PATH");
    if (held && c->data.train.n == 0)
        return CONFIG_FAIL(c, "data.split",
            "it holds out a part of data.train, and that is empty; name the files there, or others with --data PATH");
    r->apart = 1;
    if (held)
        SHERD_TRY(open_train(r, c, rank, &windows));
    r->feed = make_feed(r, c, rank, world);
    SHERD_TRY(choose_eval(r, c));
    r->evaluates = 1;
    return feed_check(&r->eval);
}

static int compare(struct tokens_mark mine, const char *key, struct sherd_comm *comm)
{
    char a[32], b[32];
    struct tokens_mark first = mine;
    SHERD_TRY(comm_host_broadcast(comm, &first, sizeof(first), 0));
    int st = SHERD_OK;
    if (mine.count != first.count)
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s tokens on rank %d, %s on rank 0: all ranks must read the same data, so copy it anew to this host",
            key, text_commas(mine.count, a), sherd_comm_rank(comm), text_commas(first.count, b));
    else if (strcmp(mine.sum, first.sum) != 0)
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: as many tokens on rank %d as on rank 0, but others: all ranks must read the same data, so copy it anew "
            "to this host",
            key, sherd_comm_rank(comm));
    return comm_agree(comm, st);
}

int reading_compare(struct reading *r, struct sherd_comm *comm)
{
    if (r->train) {
        r->mark = tokens_mark(r->train);
        SHERD_TRY(compare(r->mark, "data.train", comm));
    }
    return r->val ? compare(tokens_mark(r->val), "data.val", comm) : SHERD_OK;
}

int reading_start(struct reading *r)
{
    return ahead_create(&r->ahead, &r->feed);
}

void reading_finish(struct reading *r)
{
    ahead_destroy(r->ahead);
    mix_finish(&r->mix);
    tokens_close(r->train);
    tokens_close(r->val);
    *r = (struct reading){ 0 };
}

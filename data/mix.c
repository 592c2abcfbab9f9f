/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Epochs over several sources. As in sampler.c, everything follows from the number of samples before: sample
 * g is draw number epoch * draws + k of its source, and that is a place in a pass over it.
 */
#include <assert.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "data/data.h"

#define PASSES 0x100000000u /* streams of one source: passes stay below */

/* A source from what it has of the stream. */
static int set_source(struct mix_source *s, int64_t first, int64_t tokens, double weight, double split,
    int64_t seq, const char *what, const char *path)
{
    int64_t windows = tokens > 0 ? (tokens - 1) / seq : 0;
    s->first = first;
    s->held = (int64_t)floor((double)windows * split);
    if (split > 0 && s->held == 0 && windows > 0)
        s->held = 1;
    s->windows = windows - s->held;
    if (s->windows < 1)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s: %lld tokens make %lld samples of batch.seq %lld%s; give more data or a smaller batch.seq",
            what, path, (long long)tokens, (long long)windows, (long long)seq,
            split > 0 ? ", of which data.split leaves none to train on" : "");
    s->draws = MAX(llround(weight * (double)s->windows), 1);
    return SHERD_OK;
}

int mix_init(struct mix *out, const struct tokens *tokens, const struct tokens_desc *desc,
    const double *weights, double split, int64_t seq)
{
    int st = SHERD_OK;
    *out = (struct mix){ .n = weights ? desc->n_paths : 1 };
    out->sources = mem_zalloc((size_t)out->n, sizeof(*out->sources));
    if (!out->sources)
        return SHERD_ENOMEM;
    for (int i = 0; i < out->n; i++) {
        int64_t first = 0, n = tokens_count(tokens);
        if (weights)
            tokens_source(tokens, i, &first, &n);
        struct mix_source *s = &out->sources[i];
        SHERD_TRY_OUT(
            set_source(s, first, n, weights ? weights[i] : 1, split, seq, desc->what, desc->paths[i]));
        out->draws += s->draws;
        out->held += s->held;
    }
    return SHERD_OK;
out:
    mix_finish(out);
    return st;
}

void mix_finish(struct mix *mix)
{
    mem_free(mix->sources);
    *mix = (struct mix){ 0 };
}

/* Where sample i of a source lies: those to train on come first, then those held out. */
static int64_t place(const struct mix *mix, const struct mix_source *s, int64_t seq, int64_t i)
{
    uint64_t stream = rng_stream("data/split") + (uint64_t)(s - mix->sources);
    if (mix->split_seed && s->held)
        i = (int64_t)rng_permute((uint64_t)i, (uint64_t)(s->windows + s->held), mix->split_seed, stream);
    return s->first + i * seq;
}

int64_t mix_at(const struct mix *mix, const struct sampler *sampler, int64_t seq, int64_t g)
{
    const struct mix_source *s = mix->sources;
    int64_t epoch = g / mix->draws, k = sampler_at(sampler, g);
    assert(sampler->windows == mix->draws);
    if (mix->n == 1 && s->draws == s->windows)
        return place(mix, s, seq, k);
    for (; k >= s->draws; s++)
        k -= s->draws;
    int64_t draw = epoch * s->draws + k, pass = draw / s->windows, at = draw % s->windows;
    if (sampler->shuffle) {
        uint64_t stream = rng_stream("data/source") + (uint64_t)(s - mix->sources) * PASSES + (uint64_t)pass;
        at = (int64_t)rng_permute((uint64_t)at, (uint64_t)s->windows, sampler->seed, stream);
    }
    return place(mix, s, seq, at);
}

int64_t mix_held_at(const struct mix *mix, int64_t seq, int64_t i)
{
    const struct mix_source *s = mix->sources;
    assert(i >= 0 && i < mix->held);
    for (; i >= s->held; s++)
        i -= s->held;
    return place(mix, s, seq, s->windows + i);
}

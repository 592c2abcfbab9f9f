/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The rows of a rank's micro-batches, in training and in evaluation.
 */
#include "data/data.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"

int feed_check(const struct feed *feed)
{
    if (feed->sampler.windows < 1 || feed->seq < 1 || feed->micro < 1 || feed->global < 1 || feed->total < 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "data: %lld samples of %lld tokens in steps of %lld, micro-batches of %lld: each must be at "
            "least 1",
            (long long)feed->sampler.windows, (long long)feed->seq, (long long)feed->global,
            (long long)feed->micro);
    if (feed->world < 1 || feed->rank < 0 || feed->rank >= feed->world)
        return SHERD_FAIL(SHERD_ECONFIG, "data: rank %d of %d ranks", feed->rank, feed->world);
    if (feed->micro > INT32_MAX || feed->global % (feed->micro * feed->world) != 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "batch: global %lld is not a multiple of micro %lld x %d ranks; change one of the three",
            (long long)feed->global, (long long)feed->micro, feed->world);
    return SHERD_OK;
}

int64_t feed_accum(const struct feed *feed)
{
    return feed->global / (feed->micro * feed->world);
}

int64_t feed_steps(const struct feed *feed)
{
    return feed->total / feed->global + (feed->total % feed->global != 0);
}

/* seq tokens from the first on, and the seq tokens one further. */
static int fill_row(const struct feed *feed, int64_t first, int32_t *tokens, int32_t *targets)
{
    int64_t seq = feed->seq;
    SHERD_TRY(tokens_read(feed->tokens, first, seq, tokens));
    memcpy(targets, tokens + 1, (size_t)(seq - 1) * sizeof(*targets));
    SHERD_TRY(tokens_read(feed->tokens, first + seq, 1, targets + seq - 1));
    for (int64_t i = 0; i < seq && feed->has_end; i++)
        if (tokens[i] == feed->end)
            targets[i] = -1;
    return SHERD_OK;
}

/* The token that the g-th sample of the run begins with. */
static int64_t sample_first(const struct feed *feed, int64_t g)
{
    return feed->mix ? mix_at(feed->mix, &feed->sampler, feed->seq, g)
                     : sampler_at(&feed->sampler, g) * feed->seq;
}

static void fill_empty(const struct feed *feed, int32_t *tokens, int32_t *targets)
{
    for (int64_t i = 0; i < feed->seq; i++) {
        tokens[i] = 0;
        targets[i] = -1;
    }
}

int feed_fill(const struct feed *feed, int64_t cursor, int64_t m, int32_t *tokens, int32_t *targets)
{
    assert(cursor >= 0 && m >= 0 && m < feed_accum(feed));
    int64_t first = cursor + (m * feed->world + feed->rank) * feed->micro;
    for (int64_t i = 0; i < feed->micro; i++, tokens += feed->seq, targets += feed->seq) {
        int64_t g = first + i;
        if (feed->total > 0 && g >= feed->total)
            fill_empty(feed, tokens, targets);
        else
            SHERD_TRY(fill_row(feed, sample_first(feed, g), tokens, targets));
    }
    return SHERD_OK;
}

int64_t eval_windows(const struct feed *feed, int64_t limit)
{
    return limit > 0 ? MIN(limit, feed->sampler.windows) : feed->sampler.windows;
}

int64_t eval_count(const struct feed *feed, int64_t limit)
{
    int64_t batches = (eval_windows(feed, limit) + feed->micro - 1) / feed->micro;
    return (batches - feed->rank + feed->world - 1) / feed->world;
}

int eval_fill(
    const struct feed *feed, int64_t limit, int64_t k, int32_t *tokens, int32_t *targets, int64_t *rows)
{
    assert(k >= 0 && k < eval_count(feed, limit));
    int64_t first = (k * feed->world + feed->rank) * feed->micro;
    *rows = MIN(feed->micro, eval_windows(feed, limit) - first);
    for (int64_t i = 0; i < *rows; i++, tokens += feed->seq, targets += feed->seq) {
        int64_t at = feed->held ? mix_held_at(feed->mix, feed->seq, first + i) : (first + i) * feed->seq;
        SHERD_TRY(fill_row(feed, at, tokens, targets));
    }
    return SHERD_OK;
}

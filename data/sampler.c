/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The order of samples, as a pure function of the number of samples before: nothing to save, nothing to
 * replay, and the same on every rank.
 */
#include "data/data.h"

#include <assert.h>

#include "base/rng.h"

int64_t sampler_at(const struct sampler *sampler, int64_t g)
{
    assert(sampler->windows > 0 && g >= 0);
    int64_t epoch = g / sampler->windows, at = g % sampler->windows;
    if (!sampler->shuffle)
        return at;
    uint64_t stream = rng_stream("data/epoch") + (uint64_t)epoch;
    return (int64_t)rng_permute((uint64_t)at, (uint64_t)sampler->windows, sampler->seed, stream);
}

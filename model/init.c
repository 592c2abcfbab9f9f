/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Initial values, by counter.
 */
#include "model/init.h"

#include <assert.h>

#include "base/rng.h"

void model_init_slice(float *out, const struct sherd_param *p, int64_t first, int64_t n, uint64_t seed)
{
    assert(first >= 0 && n >= 0);
    if (p->init == SHERD_INIT_NORMAL) {
        /* Names of tensors could meet names of other streams; the second half keeps them apart. */
        rng_normal(out, n, seed, rng_stream(p->name) ^ rng_stream("init/"), (uint64_t)first, p->std);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = p->init == SHERD_INIT_ONE ? 1.0f : 0.0f;
}

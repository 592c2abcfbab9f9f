/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Initial values. Each rank draws only the slice it owns; the values depend on the seed, the parameter's
 * name and the place in it, and on nothing else.
 */
#ifndef SHERD_MODEL_INIT_H
#define SHERD_MODEL_INIT_H

#include <sherd/model.h>

/* Elements [first, first + n) of a parameter, to host memory. */
void model_init_slice(float *out, const struct sherd_param *p, int64_t first, int64_t n, uint64_t seed);

#endif

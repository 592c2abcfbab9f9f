/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reads the files that tools/gold.py makes, and compares with them.
 */
#ifndef SHERD_TESTS_GOLDEN_GOLD_H
#define SHERD_TESTS_GOLDEN_GOLD_H

#include <sherd/model.h>
#include "base/file.h"
#include "base/json.h"

struct gold {
    struct file_map map;
    json_t *header;
    const uint8_t *data;
    int64_t steps, batch, seq; /* of the tokens */
    struct sherd_model_config config;
};

/* Files lie in the folder named by the environment variable GOLDEN. Fails the test if they cannot be read. */
void gold_open(struct gold *gold, const char *name);
void gold_close(struct gold *gold);

/* A number from the settings. */
double gold_number(const struct gold *gold, const char *key);
/* Bytes of a tensor, of the type and number of elements expected. */
const void *gold_raw(const struct gold *gold, const char *name, const char *type, int64_t elems);
/* A tensor as float: prefix "w/", "g/" or "d/" and the name. mem_free it. */
float *gold_floats(const struct gold *gold, const char *prefix, const char *name, int64_t elems);

/* |a - want| / |want|, by norm; an error that is no number is infinite. */
double gold_error(const float *a, const float *want, int64_t n);

#endif

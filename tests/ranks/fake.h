/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A model with awkward shapes and states with known values, without an engine: what tests of checkpoints
 * save and load. Every value is a function of the tensor's name, the state and the element.
 */
#ifndef SHERD_TESTS_RANKS_FAKE_H
#define SHERD_TESTS_RANKS_FAKE_H

#include "ckpt/ckpt.h"
#include "tests/folder.h"

#define FAKE_MAX_WORLD 8

/* How the model and the run differ from the plain ones; all 0 is plain. */
struct fake_options {
    int untied;                   /* the head is a tensor of its own */
    int no_alias;                 /* the head is tied without a second name */
    int vocab;                    /* 0 = 101 */
    int large;                    /* one more tensor, larger than the buffers */
    int missing, extra;           /* a tensor less, a tensor more */
    int freeze_all;               /* nothing is trained */
    int freeze_wte;               /* the embedding is frozen */
    int thaw_all;                 /* nothing is frozen */
    int whole;                    /* views of whole segments, as in stage 0 */
    int sgd;                      /* optimizer without states */
    int big;                      /* a value too large for F16 in tensor "scale" */
    enum sherd_dtype frozen_type; /* 0 = BF16 */
    int64_t step;                 /* 0 = 10 */
    uint64_t seed;                /* 0 = 1 */
    uint64_t run;                 /* whose; 0 = not known */
    double loss;                  /* on validation data; 0 = none */
    int infinite;                 /* the last value of tensor h.0.q.weight is no number */
    const char *extra_json;
    int64_t fail_at;     /* this allocation of the save or load fails; for a world of 1 */
    uint64_t file_limit; /* files cannot grow above it during a save; 0 = none */
    int breaks;          /* rank breaks - 1 has no views */
    int beside;          /* saved as beside training: a queue waits for the copies of each unit */
};

/* One rank's job, with views filled with the known values or with rubbish. */
struct fake {
    struct fake_options options;
    struct shard_layout layout;
    struct sherd_unit units[5];
    struct sherd_param params[24];
    int n_units, n_params;
    struct shard_view views[40];
    int n_views;
    struct ckpt_job job;
};
int fake_init(struct fake *fake, const struct fake_options *options, struct sherd_comm *comm,
    struct sherd_device *dev, int rubbish);
void fake_finish(struct fake *fake);
/* Every element of every view has its value and padding is as it was left by fake_init: EINTERNAL says which
 * is wrong. `zero_states`: states of tensors called so must be 0. */
int fake_check(const struct fake *fake, const char *zero_states);
float fake_value(const struct fake_options *options, const char *what, const char *tensor, int64_t i);

/* How the ranks of a save or load ended. */
struct fake_results {
    int status[FAKE_MAX_WORLD];
    char text[FAKE_MAX_WORLD][1024];
    uint64_t allocations; /* of the save or load, with fail_at */
};

/* Saves, or loads and checks, on that many ranks, threads. The status of the first rank that failed by itself
 * (not by EPEER), with its text. */
int fake_save(struct fake_results *out, int world, const struct fake_options *options, const char *dir);
int fake_load(struct fake_results *out, int world, const struct fake_options *options, const char *path,
    const char *zero_states);
/* Loads at `world`, checks, and that each rank reads the manifest, the headers of the files its slices lie in
 * and the blocks that hold them, each once, and not a byte more; saves to `to`. */
int fake_reload(struct fake_results *out, int world, const struct fake_options *options, const char *path,
    const char *to);

/* A folder of the test's own, as a cmocka group and test setup: made, removed, emptied. */
extern char fake_root[FOLDER_BYTES];
int fake_enter(void **state);
int fake_leave(void **state);
int fake_fresh(void **state);
/* A path in it. */
#define fake_at(...) folder_path(fake_root, __VA_ARGS__)

#endif

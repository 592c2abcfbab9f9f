/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The inside of a config: where each value came from, and what the rest of runtime/ asks of a config besides
 * include/sherd/config.h. Reading is in config.c, what values must be together in check.c, writing in
 * print.c.
 */
#ifndef SHERD_RUNTIME_CONFIG_H
#define SHERD_RUNTIME_CONFIG_H

#include <sherd/config.h>
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

struct key;

/* Fills in those of batch.global, micro and accum that are 0, or that an earlier call filled in, for `world`
 * ranks. ECONFIG with all four numbers and a way out if they do not fit or the global batch cannot be
 * divided. */
int config_derive_batch(struct sherd_config *config, int world);
/* What only training needs: ECONFIG without data.train, or with evaluations but no data.val. */
int config_check_train(const struct sherd_config *config);
/* What a program may have filled in by itself: every value of run, shard, dtype, batch, optim, schedule,
 * train and check by its range, and what number formats must be together. ECONFIG names the key. */
int config_check_filled(const struct sherd_config *config);
/* What the schedule needs of the number of steps, ECONFIG otherwise: for runs by epochs, whose steps are
 * known only when the data is; when train.steps is given, reading has checked it. */
int config_check_steps(const struct sherd_config *config, int64_t steps);
/* What struct sherd_config and struct sherd_model_config say alike of a model: as it is, or REAL: a double
 * there, a float here, where 0 leaves it to the default. */
#define CONFIG_MODEL(SAME, REAL)                                                                             \
    SAME(family)                                                                                             \
    SAME(vocab)                                                                                              \
    SAME(width)                                                                                              \
    SAME(layers)                                                                                             \
    SAME(heads)                                                                                              \
    SAME(kv_heads)                                                                                           \
    SAME(head_dim)                                                                                           \
    SAME(mlp_width)                                                                                          \
    SAME(context)                                                                                            \
    SAME(tied)                                                                                               \
    REAL(norm_eps)                                                                                           \
    REAL(rope_theta)                                                                                         \
    SAME(rope_scaling)                                                                                       \
    REAL(rope_factor)                                                                                        \
    REAL(rope_low_freq)                                                                                      \
    REAL(rope_high_freq)                                                                                     \
    SAME(rope_context)                                                                                       \
    REAL(init_std)

#define CONFIG_PRINTED "# Effective settings" /* what a printed config begins with, in every version */
/* The default of model.from. */
#define CONFIG_NO_FROM "none"
/* 1 if the run starts from the weights in model.from. */
int config_has_from(const struct sherd_config *config);
/* A config of its own, texts and all. */
int config_copy(struct sherd_config *out, const struct sherd_config *in);

/* --- among config.c, check.c and print.c --- */

struct config_source {
    const char *where;  /* "configs/x.yaml:7", or one of the constants below */
    const char *value;  /* as it stood when that was noted: a field changed since then is told by it */
    const char *theirs; /* the key of another system that the value, or `asked`, stood under; or NULL */
    const char *asked;  /* where that key is "auto", or NULL */
};
extern const char CONFIG_DEFAULT[], CONFIG_DERIVED[], CONFIG_SET[], CONFIG_PROGRAM[];
/* model.from as sherd_config_desc.model without a source: messages say neither where it is from nor its key.
 */
extern const char CONFIG_ARGUMENT[];

/* What people should know of a file that was written for another system. */
enum config_remark_kind {
    CONFIG_CHOSEN,    /* an "auto" without a key of ours, and what it means here */
    CONFIG_IDLE,      /* a key that changes no result */
    CONFIG_DIFFERENT, /* where the two are not alike */
};
struct config_remark {
    enum config_remark_kind kind;
    const char *key, *text;
    struct config_remark *next;
};

/* What another system's file leaves to be decided when all settings are known; where NULL: nothing. */
struct config_late {
    struct config_place {
        const char *where, *theirs;
        double value;
    } ahead,         /* elements to gather ahead */
        lowest,      /* learning rate that the warm-up begins with */
        coupled,     /* Adam, and weight decay goes into the gradient */
        gpus,        /* it would train on them */
        ranks;       /* that the other system would start, */
    double hosts;    /* on so many */
    int needs_batch; /* batch sizes must be given */
};

/* What is refused of other systems' files: one line for each, while they fit into an error text. */
struct config_refused {
    struct text lines;
    int n, left; /* all of them; those that did not fit */
};

/* Behind sherd_config.origin. */
struct config_origin {
    struct arena arena;  /* all texts of the config */
    const char *name;    /* of the file */
    const char *reading; /* what is being read now: a file or an option of the command line */
    const char *foreign; /* "DeepSpeed, ds.json", NULL if nothing was read from another system's file */
    struct config_remark *remarks;
    struct config_late late;
    struct config_refused refused;
    const char *from_json;       /* config.json of model.from, once read */
    struct config_source from[]; /* one for each row of keys.c */
};

/* What is known of the value of a key. */
struct config_source *config_source_of(const struct sherd_config *config, const struct key *key);
/* Notes that the value of the key now comes from `where`, which lives as long as the config. */
int config_note(struct sherd_config *config, const struct key *key, const char *where);
/* Where the value of the key comes from, as noted; "set by the program" when it was changed since. */
int config_where(const struct sherd_config *config, const struct key *key, const char **where);
/* Checks that concern several keys; replaces KEY_UNSET by what follows from other keys. */
int config_settle(struct sherd_config *config);

/* Takes the settings of the model from the config.json in model.from; ECONFIG or the reader's status for what
 * does not fit. */
int config_import(struct sherd_config *config);

/* Fails with "where: key: ..." for the key at `path`. */
#define CONFIG_FAIL(config, path, ...) config_fail_at(config, path, SHERD_FAIL(SHERD_ECONFIG, __VA_ARGS__))
int config_fail_at(const struct sherd_config *config, const char *path, int status);

#endif

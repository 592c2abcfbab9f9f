/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A model that is asked in text: opening it with its tokenizer, wherever it comes from. Weights alone take
 * memory: nothing is trained.
 */
#ifndef SHERD_TOOLS_SPEAK_H
#define SHERD_TOOLS_SPEAK_H

#include <sherd/sherd.h>

#define SPEAK_ENDS 16

struct speak_desc {
    const char *path;      /* run folder, step folder, or folder of a Hugging Face model */
    const char *config;    /* settings in place of those in the checkpoint; NULL */
    const char *tokenizer; /* in place of what lies beside the model; NULL */
    const char *device;    /* NULL: cpu */
};

struct speak {
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_device *device;
    struct sherd_engine *engine;
    struct sherd_tokenizer *tokenizer;
    char *weights;            /* what to load: a step folder, or a model folder */
    int is_folder;            /* the latter */
    char *run;                /* not then: the folder that the step folder lies in */
    int32_t ends[SPEAK_ENDS]; /* tokens after which there is nothing to say */
    int n_ends;
    int64_t vocab; /* ids that have a text */
};

/* The settings and the tokenizer. Returns EXIT_OK, or the exit code after telling what is wrong. */
int speak_open(struct speak *s, const struct speak_desc *desc);
/* The engine for windows of `seq` tokens, with its weights. */
int speak_start(struct speak *s, const struct speak_desc *desc, int64_t seq);
void speak_close(struct speak *s);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which token files a path stands for: a file, a folder of texts or of token files, the prefix of a pair.
 * What is taken, what is passed over and counted, and what is refused; see tokens_open in data/data.h.
 */
#ifndef SHERD_DATA_WALK_H
#define SHERD_DATA_WALK_H

#include "data/format.h"

/* Why files were passed over. */
enum walk_skip {
    WALK_HIDDEN,
    WALK_EMPTY,
    WALK_BINARY,
    WALK_NAME,
    WALK_KIND,
    WALK_SET,
    WALK_SKIPS,
};

/* Zero-initialize, but for the first six; walk_finish frees. */
struct walk {
    const char *what;         /* borrowed: the key the paths come from, for messages */
    enum sherd_format format; /* that is asked for */
    int64_t vocab;            /* 0: not checked */
    int quiet;                /* somebody else warns */
    int strict;               /* the report is a warning where something was passed over */
    int texts;                /* files are listed, to be tokenized, and not trained on as they are */
    struct token_file *files; /* mapped, in the order of the stream */
    int n_files, cap;
    int64_t count; /* tokens of all of them */
    int told_json;
    int64_t skipped[WALK_SKIPS];
};

/* Adds the files of a path. */
int walk_path(struct walk *walk, const char *path);
/* One log line: how many files and tokens, and what was passed over. */
void walk_report(const struct walk *walk);
void walk_finish(struct walk *walk);
/* Unmaps and frees files that were taken out of a walk. */
void walk_free(struct token_file *files, int n);

#endif

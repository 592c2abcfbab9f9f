/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One save, between its parts: ckpt/save.c leads all ranks through it, ckpt/commit.c is what rank 0 does
 * alone before and after.
 */
#ifndef SHERD_CKPT_SAVE_H
#define SHERD_CKPT_SAVE_H

#include "ckpt/stream.h"

#define SAVE_TOKEN_BYTES 17 /* 64 random bits in hex, with NUL */

/* What a rank tells the others about its files. */
struct save_report {
    uint64_t bytes[CKPT_KINDS];
    char sum[CKPT_KINDS][SUM_TEXT_BYTES];
    char pad[2];
    int32_t nonfinite;
};

struct save {
    const char *dir; /* owned */
    int rank, world, n_kinds;
    struct piece_list lists[CKPT_KINDS];
    struct stream_file files[CKPT_KINDS];
    struct save_report *reports; /* of all ranks */
    uint64_t *blocks;            /* sums of all ranks: [rank][kind][most_blocks] */
    uint64_t total;              /* bytes of all files */
    uint64_t block, most_blocks;
    char token[SAVE_TOKEN_BYTES]; /* makes names of this save unlike those of a dead one */
    char name[CKPT_NAME_BYTES];   /* of the temporary folder */
    char *temp, *final;
    struct manifest manifest; /* without sums; owns copies of the job's texts */
    struct ckpt_keep keep;
    int rotates;
    double start, begun;
};

/* The sums of a rank's file. */
static inline uint64_t *save_blocks(const struct save *s, int rank, int kind)
{
    return s->blocks + (uint64_t)(rank * s->n_kinds + kind) * s->most_blocks;
}

int save_token(char token[SAVE_TOKEN_BYTES]);
/* Waits for a folder that rank 0 made: storage that ranks share may take a moment to show it. EIO if it does
 * not. */
int save_see(const char *path);

/* Rank 0, before anything is written: the place and the space are looked at, and the temporary folder made.
 */
int save_begin(struct save *save);
/* Rank 0, when all files are on disk: manifest, rename, `latest`, rotation. Touches no communicator. */
int save_commit(struct save *save);
/* Rank 0: removes what a failed save left, keeping the text of the failure. */
void save_clean_up(const struct save *save, int status);

#endif

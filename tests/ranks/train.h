/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Runs of sherd_train on two ranks, threads, in a folder of the test's own, and what they said.
 */
#ifndef SHERD_TESTS_RANKS_TRAIN_H
#define SHERD_TESTS_RANKS_TRAIN_H

#include "base/text.h"
#include "tests/folder.h"
#include "tests/t.h"

#define WORLD 2
#define SETTINGS 8

extern char root[FOLDER_BYTES];
extern struct text said; /* by all ranks of the last run */
extern const char train_config[];

/* One run of 9 steps that saves after 3, 6 and 9. */
struct train {
    const char *dir;
    const char *settings[SETTINGS]; /* more of them */
    int stop_at;                    /* the last rank is asked to stop before this step; 0 = not */
    int alone;                      /* rank 1 has other data: text1 */
    int status[WORLD];
    char error[WORLD][1024];
};

void train(struct train *t);
/* One rank of it, with a communicator of its own. */
void train_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *train);

/* A path in the folder. */
#define at(...) folder_path(root, __VA_ARGS__)

int has_step(const char *dir, int step);
/* The weights and states of a step are the same bytes in both runs. */
void same_step(const char *a, const char *b, int step);

/* The setup of a group of tests: the folder, with 2000 random letters in the file "text". */
int train_enter(void **state);
int train_leave(void **state);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a run reads, from its settings: the files, what an epoch is made of, what is held out, and the steps
 * read ahead.
 */
#ifndef SHERD_RUNTIME_READING_H
#define SHERD_RUNTIME_READING_H

#include "comm/ops.h"
#include "data/data.h"
#include "runtime/config.h"

struct reading {
    struct tokens *train, *val; /* NULL where not read */
    struct mix mix;
    struct feed feed, eval;
    int evaluates;           /* there is something to evaluate on */
    int apart;               /* from training: nothing else tells what data.val is */
    struct tokens_mark mark; /* of train, once compared */
    struct ahead *ahead;
};

/* Opens the files for this rank, and settles train.steps when the run goes by epochs. Zero-initialize;
 * finish with reading_finish, after a failure too. */
int reading_open(struct reading *r, struct sherd_config *config, int rank, int world);
/* The same for an evaluation apart from training: opens what training would evaluate on, and nothing else. */
int reading_open_eval(struct reading *r, const struct sherd_config *config, int rank, int world);
/* ECONFIG where that is text, and the folder of the model or its run has a tokenizer that it was not made
 * into tokens with. */
int reading_check_eval(const struct reading *r, const struct sherd_config *config, const char *folder);
/* Collective: that all ranks read the same tokens, to train and to evaluate on; ECONFIG by one that does not.
 */
int reading_compare(struct reading *r, struct sherd_comm *comm);
/* The thread that reads ahead. */
int reading_start(struct reading *r);
void reading_finish(struct reading *r);
/* data.weights as numbers, one for each of data.train; ECONFIG for another count, or what is no weight.
 * *out is NULL without weights; mem_free it. */
int reading_weights(const struct sherd_config *config, double **out);

#endif

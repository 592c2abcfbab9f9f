/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The rank that holds the others up, from what all ranks show on the board (runtime/watch.h). It is told on
 * evidence only: the same rank, in the same phase, at look after look, over steps and seconds enough that no
 * passing load of a host explains it. Short runs tell nothing.
 */
#ifndef SHERD_RUNTIME_SLOW_H
#define SHERD_RUNTIME_SLOW_H

#include <stdint.h>

#include "base/text.h"
#include "comm/board.h"

/* What a rank takes longer in a phase than the middle of all, before that counts; and how long it has to. */
#define SLOW_SHARE 0.2   /* of a step */
#define SLOW_LOOKS 3     /* in a row, not counting the first of a run, which only sets the marks */
#define SLOW_STEPS 10    /* over all of them */
#define SLOW_SECONDS 1.0 /* lost by them */

struct slow {
    int world;
    struct slow_seen *seen; /* of every rank at the last look */
    double *means;          /* of every rank by phase, seconds a step since then; and room to sort a phase */
    /* The suspect; looks = 0: nobody. Seconds over `steps` steps: its own, of the middle rank, of the steps.
     */
    int rank, phase, looks;
    int64_t steps;
    double own, usual, whole;
};

int slow_init(struct slow *slow, int world);
void slow_finish(struct slow *slow);
/* Looks at the steps since the last look. Appends "rank 2 is slow: data 31 ms a step, others 0.4 ms (a step
 * takes 52 ms), over 30 steps" if there is such a rank; that rank is then told again on new evidence only. */
void slow_look(struct slow *slow, const struct board *board, struct text *line);

#endif

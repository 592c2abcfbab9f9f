/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Naming the rank that holds the others up: see runtime/slow.h.
 */
#include "runtime/slow.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "runtime/watch.h"

struct slow_seen {
    int64_t step; /* 0 = not looked at yet */
    double seconds[BOARD_FIGURES];
};

int slow_init(struct slow *slow, int world)
{
    *slow = (struct slow){ .world = world };
    slow->seen = mem_zalloc((size_t)world, sizeof(*slow->seen));
    slow->means = mem_zalloc((size_t)world * (WATCH_N_PHASES + 1), sizeof(*slow->means));
    return slow->seen && slow->means ? SHERD_OK : SHERD_ENOMEM;
}

void slow_finish(struct slow *slow)
{
    mem_free(slow->seen);
    mem_free(slow->means);
}

/* Seconds a step of every rank since the last look; returns the steps that the slowest to show took, 0 as
 * long as one has shown none: then nothing is taken, and the next look has more. */
static int64_t take_means(struct slow *slow, const struct board *board)
{
    double seconds[BOARD_FIGURES];
    int64_t least = INT64_MAX;
    int first = 0;
    for (int r = 0; r < slow->world; r++) {
        least = MIN(least, board_look(board, r, seconds) - slow->seen[r].step);
        first |= slow->seen[r].step == 0;
    }
    if (least <= 0)
        return 0;
    for (int r = 0; r < slow->world; r++) {
        struct slow_seen *seen = &slow->seen[r];
        int64_t step = board_look(board, r, seconds);
        for (int p = 0; p < WATCH_N_PHASES; p++)
            slow->means[r * WATCH_N_PHASES + p] =
                (seconds[p] - seen->seconds[p]) / (double)(step - seen->step);
        seen->step = step;
        memcpy(seen->seconds, seconds, sizeof(seconds));
    }
    return first ? 0 : least;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The rank that takes longest in a phase, and the middle of all. */
static int slowest(struct slow *slow, int phase, double *middle)
{
    double *sorted = slow->means + slow->world * WATCH_N_PHASES;
    int rank = 0;
    for (int r = 0; r < slow->world; r++) {
        sorted[r] = slow->means[r * WATCH_N_PHASES + phase];
        if (sorted[r] > slow->means[rank * WATCH_N_PHASES + phase])
            rank = r;
    }
    qsort(sorted, (size_t)slow->world, sizeof(*sorted), by_value);
    *middle = sorted[(slow->world - 1) / 2];
    return rank;
}

/* Adds what `steps` steps show to the evidence against the one that it is against, if it is against any. */
static void weigh(struct slow *slow, int64_t steps)
{
    double step = 0, most = 0, usual = 0;
    int rank = -1, phase = -1;
    for (int p = 0; p < WATCH_N_PHASES; p++)
        step += slow->means[p]; /* rank 0's; all wait for each other */
    for (int p = 0; p < WATCH_WAIT; p++) {
        double middle;
        int r = slowest(slow, p, &middle);
        double more = slow->means[r * WATCH_N_PHASES + p] - middle;
        if (more <= MAX(most, SLOW_SHARE * step))
            continue;
        most = more;
        usual = middle;
        rank = r;
        phase = p;
    }
    if (rank < 0 || rank != slow->rank || phase != slow->phase) {
        slow->looks = 0;
        slow->steps = 0;
        slow->own = slow->usual = slow->whole = 0;
    }
    if (rank < 0)
        return;
    slow->rank = rank;
    slow->phase = phase;
    slow->looks++;
    slow->steps += steps;
    slow->own += (usual + most) * (double)steps;
    slow->usual += usual * (double)steps;
    slow->whole += step * (double)steps;
}

void slow_look(struct slow *slow, const struct board *board, struct text *line)
{
    int64_t steps = take_means(slow, board);
    if (steps == 0)
        return;
    weigh(slow, steps);
    if (slow->looks < SLOW_LOOKS || slow->steps < SLOW_STEPS || slow->own - slow->usual < SLOW_SECONDS)
        return;
    double ms = 1e3 / (double)slow->steps;
    text_add(line,
        "rank %d is slow: %s %.3g ms a step, others %.3g ms (a step takes %.3g ms), over %lld steps",
        slow->rank, watch_phase_name((enum watch_phase)slow->phase), ms * slow->own, ms * slow->usual,
        ms * slow->whole, (long long)slow->steps);
    slow->looks = 0;
    slow->steps = 0;
    slow->own = slow->usual = slow->whole = 0;
}

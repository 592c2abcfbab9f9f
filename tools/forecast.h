/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The part of `sherd plan` that knows a machine: whether each stage and kind of recomputing fits there, the
 * time of a step, and what would make the configuration fit.
 */
#ifndef SHERD_TOOLS_FORECAST_H
#define SHERD_TOOLS_FORECAST_H

#include <sherd/sherd.h>

#include "tools/out.h"

#define FORECAST_RECOMPUTES 3
#define FORECAST_ADVICE 8

struct forecast_row {
    uint64_t memory; /* planned, and what libraries take */
    int fits;
    struct sherd_forecast time;
};

struct forecast {
    struct sherd_machine machine;
    struct sherd_place place;
    struct forecast_row rows[SHERD_STAGES][FORECAST_RECOMPUTES];
    int stage, recompute;             /* as configured */
    char advice[FORECAST_ADVICE][64]; /* settings that make it fit, to be used together; none: n_advice = 0 */
    int n_advice;
    uint64_t advised; /* memory with them */
};

/* A machine by the name of a shipped device file, or from a file. */
int forecast_machine(struct sherd_machine *out, const char *name);
/* `f` has machine and place; the config is changed meanwhile, and is as it was afterwards. */
int forecast_fill(struct forecast *f, struct sherd_config *config);
/* Whether the configuration fits: ENOMEM says what is missing and what would help. */
int forecast_check(const struct forecast *f);
void forecast_print(const struct forecast *f);
json_t *forecast_json(const struct forecast *f);

#endif

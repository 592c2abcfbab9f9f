/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a step will take on a machine that need not be there: rates of a device and its links, measured by
 * `sherd bench --save` or shipped, and the step program walked over them. docs/plan.md has the formulas.
 */
#ifndef SHERD_FORECAST_H
#define SHERD_FORECAST_H

#include <sherd/comm.h>
#include <sherd/config.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_MACHINE_CLASSES 16

/* One collective on one kind of link, over n ranks: seconds = start + step (n - 1) + wire bytes / rate, where
 * a gather and a reduce-scatter of B bytes have B (n - 1) / n on the wire and an all-reduce twice that,
 * with twice the steps. */
struct sherd_link_fit {
    double start, step; /* seconds */
    double rate;        /* bytes a second */
    double beside;      /* of that time: what computing beside it loses */
};

enum sherd_link { SHERD_LINK_HOST, SHERD_LINK_NETWORK, SHERD_LINKS };

/* Matrix products of about so many operations run at so many a second. */
struct sherd_matmul_class {
    double flops, rate;
};

struct sherd_machine {
    char name[64], kind[16];        /* "NVIDIA H200", "cuda" */
    uint64_t memory, library_bytes; /* of a device; what libraries and the driver take of it */
    struct sherd_matmul_class matmul[SHERD_MACHINE_CLASSES]; /* by rising flops */
    int n_matmul;
    double attention_forward, attention_backward; /* operations a second, causal half counted */
    double memory_rate;                           /* bytes a second, read and written */
    double launch;                                /* seconds of an operation that does nothing */
    double beside_update; /* of the time of an update: what computing beside it loses */
    int gpus;             /* of a host */
    /* all-gather, reduce-scatter, all-reduce by enum sherd_collective; rate 0: the machine has no such link
     */
    struct sherd_link_fit link[SHERD_LINKS][3];
};

/* From the text of a device file; `name` stands for the file in messages. EFORMAT names file and member. */
SHERD_API int sherd_machine_parse(
    struct sherd_machine *out, const char *text, size_t bytes, const char *name);
SHERD_API int sherd_machine_read(struct sherd_machine *out, const char *path);
/* start, step = 0 and rate of n measured pairs of wire bytes and seconds, with the least squared relative
 * error. EINVAL: fewer than two sizes. */
SHERD_API int sherd_link_fit(struct sherd_link_fit *out, const double *bytes, const double *seconds, int n);

/* Where the ranks are: `gpus` on each of `hosts`. */
struct sherd_place {
    int gpus, hosts;
};

/* Seconds of one collective over all ranks; `bytes` are those of the larger of input and output. kind is
 * below SHERD_BROADCAST. */
SHERD_API double sherd_collective_seconds(const struct sherd_machine *machine,
    const struct sherd_place *place, enum sherd_collective kind, double bytes);

/* One step in the long run, in seconds. */
struct sherd_forecast {
    double step;
    double compute;           /* of layers, norm and clipping alone */
    double exposed;           /* waited for collectives and updates */
    double lost;              /* computing lost to what ran beside it */
    double gather, reduce;    /* collectives, hidden or not */
    double update;            /* of the optimizer, hidden or not */
    double flops;             /* operations a second of one device, as MFU counts them */
    double tokens_per_second; /* over all devices */
};

/* ECONFIG: the machine has no link for this place, or the batch does not divide over its ranks. */
SHERD_API int sherd_forecast_make(struct sherd_forecast *out, const struct sherd_config *config,
    const struct sherd_model *model, const struct sherd_machine *machine, const struct sherd_place *place);

#ifdef __cplusplus
}
#endif
#endif

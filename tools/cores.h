/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which cores a GPU's process keeps to, as a function of what the system says of the host. Looks at nothing
 * itself, see tools/bind.h for that.
 */
#ifndef SHERD_TOOLS_CORES_H
#define SHERD_TOOLS_CORES_H

#include <sched.h>
#include <stddef.h>

/* Logical cores by the system's numbers. For CPU_ISSET_S and its like, whose size is sizeof(struct cores). */
#define CORES_MOST 8192
struct cores {
    cpu_set_t set[CORES_MOST / CPU_SETSIZE];
};
int cores_count(const struct cores *cores);

/* "0-3,8,10-11", as the kernel lists cores, with or without the end of a line; nothing is no core. EFORMAT
 * names the list by `name`. */
int cores_parse(struct cores *out, const char *text, const char *name);
/* The same back; "..." ends one for which there is no room. Returns buf. */
const char *cores_print(const struct cores *cores, char *buf, size_t bytes);

#define CORES_BUS 16 /* bytes of "0000:1b:00.0" */

/* A host as the texts of its files. */
struct cores_host {
    const char *online; /* lists of cores, all three: those that run, */
    struct cores_gpu {
        char bus[CORES_BUS];
        const char *local;       /* those near to a GPU, */
    } * gpus;                    /* of which all are here, in any order; */
    const char *const *siblings; /* by core, the one itself and those that share its hardware; NULL = alone */
    int n_gpus, n_siblings;
};

/* The share of the GPU at `bus` in the cores near to it. All GPUs that are near to these cores have even
 * shares in the order of their places on the bus, whoever uses them, so that jobs of one host stay apart as
 * well; siblings stay together. EUNSUPPORTED says why there is none: the process `may` not use all cores of
 * the host, so that somebody has chosen for it already; there are too few cores; or other GPUs share a part
 * of them. EFORMAT: a list that cannot be right. */
int cores_share(struct cores *out, const struct cores_host *host, const struct cores *may, const char *bus);

#endif

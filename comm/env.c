/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The world as the launcher's environment tells it. The first launcher that has set its rank and its size
 * wins; one of the two alone is refused, for a run with fewer ranks than were meant would look right.
 */
#include <sherd/comm.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/sum.h"
#include "base/text.h"

#define DEFAULT_PORT 29500 /* torchrun's */
#define SLURM_PORTS 15000  /* so many, from this one: below those that systems give out by themselves */

/* NULL where unset or empty. */
static const char *get(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

/* *out is kept where the variable is unset. */
static int get_int(const char *name, int *out)
{
    const char *value = get(name);
    int64_t n;
    if (!value)
        return SHERD_OK;
    if (text_int(value, &n) != SHERD_OK || n < 0 || n > INT_MAX)
        return SHERD_FAIL(SHERD_ECONFIG, "%s is '%s', a number from 0 is wanted", name, value);
    *out = (int)n;
    return SHERD_OK;
}

/* Variables of one launcher; ids name the job, where it has such a thing. */
struct launcher {
    const char *source;
    const char *rank, *size, *local_rank, *local_size;
    const char *ids[4];
};

enum { TORCHRUN, OPEN_MPI, MVAPICH2, MPICH, SLURM };

static const struct launcher launchers[] = {
    [TORCHRUN] = { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        { "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MASTER_ADDR" } },
    [OPEN_MPI] = { "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID" } },
    [MVAPICH2] = { "MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE", { "MPIRUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    [MPICH] = { "MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        { "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    [SLURM] = { "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
        { "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" } },
};

/* The first host of a list like "gpu-[07-09,12]a,login1": gpu-07a. Returns 0 for one that does not fit. */
static int first_host(const char *list, char *out, size_t bytes)
{
    size_t n = 0;
    while (*list && *list != ',' && n + 1 < bytes) {
        if (*list != '[') {
            out[n++] = *list++;
            continue;
        }
        for (list++; *list && !strchr("-,]", *list) && n + 1 < bytes; list++)
            out[n++] = *list;
        list += strcspn(list, "]");
        list += *list == ']';
    }
    out[n] = '\0';
    return n > 0 && n + 1 < bytes;
}

/* Task 0 of a step of Slurm is on its first host; the port is told by the numbers of job and step. */
static int slurm_master(struct sherd_world *out)
{
    int job = 0, step = 0;
    const char *list = get("SLURM_STEP_NODELIST");
    list = list ? list : get("SLURM_JOB_NODELIST");
    if (!list || out->local_size == out->size)
        return SHERD_OK;
    SHERD_TRY(get_int("SLURM_JOB_ID", &job));
    SHERD_TRY(get_int("SLURM_STEP_ID", &step));
    if (!first_host(list, out->master, sizeof(out->master)))
        return SHERD_FAIL(SHERD_ECONFIG,
            "SLURM_STEP_NODELIST is '%s': no host can be read from it; set MASTER_ADDR and MASTER_PORT",
            list);
    out->port = SLURM_PORTS + (int)(((int64_t)job * 7 + step) % SLURM_PORTS);
    return SHERD_OK;
}

/* Where rank 0 is met. sherd's own launcher tells a door of sherd's, and a port for others besides. */
static int read_master(struct sherd_world *out, const struct launcher *from)
{
    const char *own = get("SHERD_MEET"), *colon = own ? strrchr(own, ':') : NULL;
    const char *host = own ? own : get("MASTER_ADDR");
    size_t len = own ? (size_t)(colon ? colon - own : 0) : host ? strlen(host) : 0;
    int64_t port = 0;
    if (own && (!colon || text_int(colon + 1, &port) != SHERD_OK))
        return SHERD_FAIL(
            SHERD_ECONFIG, "SHERD_MEET is '%s', an address and a port are wanted: host:29500", own);
    if (!own && host) {
        int given = DEFAULT_PORT;
        const char *store = get("TORCHELASTIC_USE_AGENT_STORE");
        SHERD_TRY(get_int("MASTER_PORT", &given));
        /* torchrun itself listens there then; the next port is rank 0's. */
        port = given + (store && strcmp(store, "True") == 0);
    }
    if (!host && from == &launchers[SLURM])
        return slurm_master(out);
    if (host && (port < 1 || port > 65535))
        return SHERD_FAIL(SHERD_ECONFIG, "%s: port %lld; 1 to 65535 are wanted",
            own ? "SHERD_MEET" : "MASTER_PORT", (long long)port);
    if (len >= sizeof(out->master))
        return SHERD_FAIL(SHERD_ECONFIG, "%s is longer than %zu bytes", own ? "SHERD_MEET" : "MASTER_ADDR",
            sizeof(out->master) - 1);
    snprintf(out->master, sizeof(out->master), "%.*s", (int)len, host ? host : "");
    out->port = (int)port;
    return SHERD_OK;
}

/* Names longer than the field keep their beginning and get a sum of the whole. */
static void set_job(struct sherd_world *out, const struct launcher *from)
{
    char whole[1024];
    const char *given = get("SHERD_JOB");
    size_t len = (size_t)snprintf(whole, sizeof(whole), "%s", given ? given : out->source);
    for (size_t i = 0; !given && i < ARRAY_LEN(from->ids); i++) {
        const char *id = get(from->ids[i]);
        if (id && len < sizeof(whole))
            len += (size_t)snprintf(whole + len, sizeof(whole) - len, "/%s", id);
    }
    if (len < sizeof(out->job))
        memcpy(out->job, whole, len + 1);
    else
        snprintf(out->job, sizeof(out->job), "%.100s#%016llx", whole,
            (unsigned long long)sum_hash64(whole, strlen(whole), 0));
}

/* Entry `index` of a list like "2(x3),1", which stands for 2,2,2,1. */
static int tasks_of_host(const char *list, int index, int *out)
{
    const char *s = list;
    while (*s) {
        char *end;
        long tasks = strtol(s, &end, 10), times = 1;
        if (end == s)
            break;
        if (end[0] == '(' && end[1] == 'x') {
            s = end + 2;
            times = strtol(s, &end, 10);
            if (end == s || *end != ')')
                break;
            end++;
        }
        if (index < times) {
            *out = (int)tasks;
            return SHERD_OK;
        }
        index -= (int)times;
        if (*end != ',')
            break;
        s = end + 1;
    }
    return SHERD_FAIL(
        SHERD_ECONFIG, "SLURM_STEP_TASKS_PER_NODE is '%s', which says nothing of host %d", list, index);
}

static int slurm_local_size(int *out)
{
    const char *ranks = get("SLURM_GTIDS"), *tasks = get("SLURM_STEP_TASKS_PER_NODE");
    int host = 0;
    if (ranks) {
        *out = 1;
        for (; *ranks; ranks++)
            *out += *ranks == ',';
        return SHERD_OK;
    }
    SHERD_TRY(get_int("SLURM_NODEID", &host));
    return tasks ? tasks_of_host(tasks, host, out) : SHERD_OK;
}

/* Without word of the host, all ranks are taken to be on this one. */
static int read_local(struct sherd_world *out, const struct launcher *from)
{
    int rank = -1, size = -1;
    const char *size_name = from->local_size ? from->local_size : "SLURM_GTIDS";
    SHERD_TRY(get_int(from->local_rank, &rank));
    if (from == &launchers[SLURM])
        SHERD_TRY(slurm_local_size(&size));
    else
        SHERD_TRY(get_int(from->local_size, &size));
    if (from == &launchers[TORCHRUN] && size < 0)
        SHERD_TRY(get_int("LOCAL_SIZE", &size)); /* deepspeed's launcher */
    if (size < 0 && rank >= 0 && rank != out->rank)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s is %d and %s is %d, so there are several hosts, but %s is not set: how many ranks has this one?",
            from->rank, out->rank, from->local_rank, rank, size_name);
    if (rank < 0 && size >= 0 && size != out->size)
        return SHERD_FAIL(SHERD_ECONFIG, "%s is set and %s is not", size_name, from->local_rank);
    out->local_rank = rank >= 0 ? rank : out->rank;
    out->local_size = size >= 0 ? size : out->size;
    if (out->local_size < 1 || out->local_size > out->size || out->local_rank >= out->local_size)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: local rank %d of %d on this host cannot be in a world of %d (%s, %s, %s)", from->source,
            out->local_rank, out->local_size, out->size, from->local_rank, size_name, from->size);
    return SHERD_OK;
}

static int read_world(struct sherd_world *out, const struct launcher *from)
{
    SHERD_TRY(get_int(from->rank, &out->rank));
    SHERD_TRY(get_int(from->size, &out->size));
    if (out->size < 1 || out->rank >= out->size)
        return SHERD_FAIL(SHERD_ECONFIG, "%s is %d and %s is %d: ranks count from 0 to one below the size",
            from->rank, out->rank, from->size, out->size);
    SHERD_TRY(read_local(out, from));
    const char *source = from->source;
    if (from == &launchers[TORCHRUN] && get("SHERD_JOB"))
        source = "sherd";
    else if (from == &launchers[TORCHRUN] && !get("TORCHELASTIC_RUN_ID"))
        source = "RANK and WORLD_SIZE";
    snprintf(out->source, sizeof(out->source), "%s", source);
    set_job(out, from);
    return read_master(out, from);
}

/* Slurm starts some with its own PMI: the size of the host is then in Slurm's variables alone. */
static int is_slurm_pmi(const struct launcher *from)
{
    return from == &launchers[MPICH] && !get(from->local_size) && get(launchers[SLURM].rank) &&
           get(launchers[SLURM].size);
}

int sherd_world_from_env(struct sherd_world *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < ARRAY_LEN(launchers); i++) {
        const struct launcher *from = &launchers[i];
        int rank = get(from->rank) != NULL, size = get(from->size) != NULL;
        /* A batch script of Slurm has a rank and no step: it is no rank of anything. */
        if ((!rank && !size) || (from == &launchers[SLURM] && !size) || is_slurm_pmi(from))
            continue;
        if (!rank || !size)
            return SHERD_FAIL(SHERD_ECONFIG,
                "%s is set and %s is not: set both, or unset %s for a single process",
                rank ? from->rank : from->size, rank ? from->size : from->rank,
                rank ? from->rank : from->size);
        return read_world(out, from);
    }
    if (get("LOCAL_RANK"))
        return SHERD_FAIL(SHERD_ECONFIG,
            "LOCAL_RANK is set, RANK and WORLD_SIZE are not: set all three, or unset "
            "LOCAL_RANK for a single process");
    if (get("PMIX_RANK")) /* it comes without the number of ranks */
        return SHERD_FAIL(SHERD_ECONFIG,
            "PMIX_RANK is set, and nothing says how many ranks there are: set RANK, WORLD_SIZE, LOCAL_RANK and "
            "LOCAL_WORLD_SIZE, or unset PMIX_RANK for a single process");
    out->size = out->local_size = 1;
    snprintf(out->source, sizeof(out->source), "single process");
    snprintf(out->job, sizeof(out->job), "single");
    return SHERD_OK;
}

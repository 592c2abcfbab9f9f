/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The ranks of a job: who they are, and opening a communicator among them.
 * Called by programs that embed the engine. Knows nothing of tensors, units or stages.
 */
#ifndef SHERD_COMM_H
#define SHERD_COMM_H

#include <sherd/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's place in the job. */
struct sherd_world {
    int rank, size;             /* over the whole job */
    int local_rank, local_size; /* on this host */
    char job[128];              /* names the job: ranks of different jobs never meet */
    char source[64]; /* where this was learnt: "torchrun", "Open MPI", "Slurm", "single process" ... */
};

/* Reads RANK, WORLD_SIZE, LOCAL_RANK ... (torchrun and sherd itself), then OMPI_*, MV2_*, PMI_*, then SLURM
 * step variables; nothing set = a world of one. ECONFIG for half a set (RANK without WORLD_SIZE) or a rank
 * outside the world, naming the variables. */
SHERD_API int sherd_world_from_env(struct sherd_world *out);

struct sherd_comm;

struct sherd_comm_desc {
    struct sherd_world world;
    double timeout; /* seconds without progress after which a wait fails; 0 = 600 */
};

/* Opens the communicator that suits the device: a world of one needs none, CPU ranks of one host share
 * memory, GPU ranks of one host use NCCL. Collective: returns when all ranks have come, ETIMEOUT naming those
 * that have not. The caller owns *out; the device must outlive it. */
SHERD_API int sherd_comm_open(
    struct sherd_comm **out, struct sherd_device *dev, const struct sherd_comm_desc *desc);

/* One process, `size` ranks as threads: fills comms[0..size-1], one for each thread. devs[r] is the device
 * of rank r. For tests and for embedding. */
SHERD_API int sherd_comm_open_threads(
    struct sherd_comm **comms, struct sherd_device *const *devs, int size, double timeout);

SHERD_API void sherd_comm_close(struct sherd_comm *comm); /* NULL is fine; not collective */

SHERD_API int sherd_comm_rank(const struct sherd_comm *comm);
SHERD_API int sherd_comm_size(const struct sherd_comm *comm);

/* Makes every wait of every rank of this communicator, and of those duplicated from it, fail with EPEER, now
 * and later; `reason` is shown by the others. Safe from any thread. */
SHERD_API void sherd_comm_abort(struct sherd_comm *comm, const char *reason);

/* Bytes this rank sent, per kind of collective, as the formulas count them: (W-1)/W of the whole for
 * all-gather and reduce-scatter, twice that for all-reduce; a broadcast counts in full at its root. Host-side
 * control is not counted. */
enum sherd_collective {
    SHERD_ALL_GATHER,
    SHERD_REDUCE_SCATTER,
    SHERD_ALL_REDUCE,
    SHERD_BROADCAST,
    SHERD_COLLECTIVES
};
struct sherd_comm_counters {
    uint64_t calls[SHERD_COLLECTIVES];
    uint64_t bytes[SHERD_COLLECTIVES];
};
SHERD_API void sherd_comm_read(const struct sherd_comm *comm, struct sherd_comm_counters *out);

#ifdef __cplusplus
}
#endif
#endif

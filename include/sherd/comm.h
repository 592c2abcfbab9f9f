/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The ranks of a job: who they are, opening a communicator among them, and the collectives.
 * Called by programs that embed the engine, or want collectives alone. Knows nothing of units or stages.
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
    char source[64];  /* where this was learnt: "torchrun", "Open MPI", "Slurm", "single process" ... */
    char master[128]; /* name or address of the host of rank 0, "" = not told; needed by several hosts */
    int port;         /* where rank 0 waits for the others there */
};

/* Reads RANK, WORLD_SIZE, LOCAL_RANK ... (torchrun and sherd itself), then OMPI_*, MV2_*, PMI_*, then SLURM
 * step variables; nothing set = a world of one. master and port come from SHERD_MEET, MASTER_ADDR and
 * MASTER_PORT, or Slurm's list of hosts. ECONFIG for half a set (RANK without WORLD_SIZE) or a rank outside
 * the world, naming the variables. */
SHERD_API int sherd_world_from_env(struct sherd_world *out);

struct sherd_comm;

struct sherd_comm_desc {
    struct sherd_world world;
    double timeout; /* seconds without progress after which a wait fails; 0 = 600 */
    /* How CPU ranks talk, and GPU ranks about control values: "shm", "tcp" or "mpi"; NULL or "auto" = what
     * suits. */
    const char *kind;
};

/* Opens the communicator that suits the device: a world of one needs none, CPU ranks of one host share
 * memory, those of several hosts use TCP, or MPI where that started them and tells no address of rank 0; GPU
 * ranks use NCCL. ECONFIG for a kind that cannot be. Collective: returns when all ranks have come, ETIMEOUT
 * naming those that have not. The caller owns *out; the device must outlive it. */
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

/* The collectives. They are work of a queue of the communicator's device, in that queue's order: they return
 * before they are done. Buffers are device memory; sizes are counts of elements, `elems` that of one rank.
 * All ranks must bring the same collectives with the same sizes in the same order. A communicator is used
 * from one queue at a time; sherd_comm_dup makes one for another.
 * EINVAL for arguments that cannot be right (no buffer, a size below 0, buffers that overlap in another way
 * than is said, a queue of another device). EPEER when another rank failed, ECOMM and ETIMEOUT when the work
 * did: at the call, or when the queue is synchronized. After a failure the ranks are out of step:
 * sherd_comm_abort, then close. */
enum sherd_reduce { SHERD_REDUCE_SUM, SHERD_REDUCE_MAX };

/* out[size * elems] = in[elems] of every rank, in rank order. In place: in = out + rank * elems. */
SHERD_API int sherd_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type);
/* out[elems] = sum over ranks of in[rank * elems ..]. In place: out = in + rank * elems. What else is in
 * in[size * elems] is undefined afterwards. */
SHERD_API int sherd_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type);
/* out[elems] = sum or maximum over ranks of in[elems]. In place: out = in. */
SHERD_API int sherd_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce);
/* out = in of the rank `root`, `bytes` long, on every rank. In place: out = in. Only the root reads in. */
SHERD_API int sherd_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root);

/* Returns when all ranks have called it. For the host: it does not wait for the work of queues. */
SHERD_API int sherd_comm_barrier(struct sherd_comm *comm);
/* A second communicator of the same ranks, for another queue. Collective. The caller closes both, in any
 * order. */
SHERD_API int sherd_comm_dup(struct sherd_comm **out, struct sherd_comm *comm);
/* Memory that collectives will use again and again, a whole allocation of sherd_device_alloc: lets GPUs move
 * it faster; elsewhere it does nothing. Collective, with the same sizes in the same order on all ranks. One
 * rank's part must then be a multiple of 256 bytes and begin at one, or the collective is refused: leave
 * memory for other sizes unexposed. */
SHERD_API int sherd_comm_expose(struct sherd_comm *comm, void *base, size_t bytes);
/* The same for memory that is the communicator's own from then on, to work in during collectives, until it is
 * concealed: with room for the parts of all ranks, GPUs of one host take reduce-scatters of exposed memory
 * (parts of 1 MiB and more, of F32, BF16 or F16) by their copy engines and sum what has come in rank order,
 * in float. */
SHERD_API int sherd_comm_landing(struct sherd_comm *comm, void *base, size_t bytes);
SHERD_API void sherd_comm_conceal(struct sherd_comm *comm, void *base); /* before it is freed */

#ifdef __cplusplus
}
#endif
#endif

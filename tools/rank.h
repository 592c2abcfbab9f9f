/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What the commands that run as ranks share: who this process is, its device, its last words.
 */
#ifndef SHERD_TOOLS_RANK_H
#define SHERD_TOOLS_RANK_H

#include <sherd/sherd.h>

/* Who this process is, from the environment; *launcher = 1 where it has to start `ranks` of them (0 = not
 * given). Returns -1 to go on, otherwise the exit code after the mistake was told. */
int rank_place(const char *command, int64_t ranks, struct sherd_world *world, int *launcher);

/* Last words: through the launcher's pipe, who shows what matters last, or on stderr. Returns the exit code.
 */
int rank_failed(int status, const struct sherd_world *world);

/* The share of a rank of the host in the cores that this process may use. */
int rank_cores(int local_size);

/* Holds this rank, which has no threads yet, to its share of the cores near its GPU, and says so on rank 0,
 * or on `each` rank. Returns how many cores these are; 0 where it is not held: on the CPU, where somebody
 * else has bound it, where there are too few. */
int rank_bind(const char *device, const struct sherd_world *world, int each);

/* "cuda" is one GPU for each rank of the host: that of the local rank. Returns name or buf. */
const char *rank_device(const char *name, int local_rank, char buf[32]);

/* Opens the device of this rank as run.* says, bound to its cores, and tells on rank 0 who started the ranks.
 */
int rank_open(struct sherd_device **out, const struct sherd_config *config, const struct sherd_world *world);

/* Where devices keep what they measured, for sherd_device_desc: $XDG_CACHE_HOME/sherd or ~/.cache/sherd; ""
 * where neither variable is set. Returns buf. */
#define RANK_PATH_BYTES 4096
const char *rank_cache(char buf[RANK_PATH_BYTES]);

#endif

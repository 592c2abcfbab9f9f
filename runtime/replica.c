/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Comparing replicas by hash: see runtime/replica.h. Values travel to the host in pieces, hashes to all
 * ranks.
 */
#include "runtime/replica.h"

#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "comm/board.h"
#include "runtime/engine.h"

#define STAGING_BYTES ((size_t)1 << 22)

enum { WEIGHTS, MASTERS, STATES, KINDS };
static const char *const kind_names[] = { "weights", "masters", "optimizer states" };

struct hashes {
    uint64_t of[KINDS];
};

static int add(struct sherd_engine *e, char *host, const void *data, size_t bytes, uint64_t *hash)
{
    for (size_t at = 0; data && at < bytes; at += STAGING_BYTES) {
        size_t n = MIN(STAGING_BYTES, bytes - at);
        SHERD_TRY(sherd_copy(
            e->compute, &(struct sherd_copy){ .dst = host, .src = (const char *)data + at, .bytes = n }));
        SHERD_TRY(sherd_queue_sync(e->compute));
        *hash = sum_hash64(host, n, *hash);
        comm_beat(e->comm);
    }
    return SHERD_OK;
}

/* What this rank holds whole of a unit. */
static int hash_unit(struct sherd_engine *e, char *host, int unit, struct hashes *out)
{
    const struct shard_unit *u = &e->store.units[unit];
    const struct shard_stage *stage = e->plan.stage;
    size_t trained = (size_t)u->layout->elems[SHARD_TRAINED];
    *out = (struct hashes){ 0 };
    for (int seg = 0; seg < SHARD_SEGMENTS && stage->param == SHARD_WHOLE; seg++)
        SHERD_TRY(add(e, host, u->param[seg], (size_t)u->layout->elems[seg] * sherd_dtype_bytes(e->plan.type),
            &out->of[WEIGHTS]));
    if (stage->state != SHARD_WHOLE)
        return SHERD_OK;
    if (e->plan.type != SHERD_F32)
        SHERD_TRY(add(e, host, u->low ? (const void *)u->low : u->master,
            trained * memory_master_bytes(&e->plan.memory_desc), &out->of[MASTERS]));
    for (int i = 0; i < e->plan.optim->n_states; i++)
        SHERD_TRY(
            add(e, host, u->state[i], trained * sherd_dtype_bytes(e->store.desc.state), &out->of[STATES]));
    return SHERD_OK;
}

/* The rank whose value most ranks share, the lowest of those; same[] marks them. 1 if all do. */
static int find_common(const struct hashes *all, int world, int n_units, int unit, int kind, uint8_t *same)
{
    int best = 0, most = 0;
    for (int r = 0; r < world; r++) {
        int n = 0;
        for (int k = 0; k < world; k++)
            n += all[k * n_units + unit].of[kind] == all[r * n_units + unit].of[kind];
        if (n > most) {
            most = n;
            best = r;
        }
    }
    for (int r = 0; r < world; r++)
        same[r] = all[r * n_units + unit].of[kind] == all[best * n_units + unit].of[kind];
    return most == world;
}

static int compare(const struct sherd_engine *e, const struct hashes *all, uint8_t *flags)
{
    int world = sherd_comm_size(e->comm), n_units = e->plan.layout.n_units;
    char common[128], others[128];
    for (int u = 0; u < n_units; u++)
        for (int k = 0; k < KINDS; k++) {
            if (find_common(all, world, n_units, u, k, flags))
                continue;
            board_ranks(flags, world, common, sizeof(common));
            for (int r = 0; r < world; r++)
                flags[r] = !flags[r];
            return SHERD_FAIL(SHERD_EDIVERGED,
                "step %lld: the %s of unit %s on %s are not those on %s, though all ranks hold the same: memory that "
                "fails, or a calculation that differs from run to run; go on from the last checkpoint before, on "
                "other hardware",
                (long long)e->step, kind_names[k], e->plan.layout.units[u].name,
                board_ranks(flags, world, others, sizeof(others)), common);
        }
    return SHERD_OK;
}

int replica_check(struct sherd_engine *e)
{
    int world = sherd_comm_size(e->comm), n_units = e->plan.layout.n_units;
    if (world == 1 || (e->plan.stage->param != SHARD_WHOLE && e->plan.stage->state != SHARD_WHOLE))
        return SHERD_OK;
    char *host = NULL;
    struct hashes *mine = mem_zalloc((size_t)n_units, sizeof(*mine));
    struct hashes *all = mem_zalloc((size_t)n_units * (size_t)world, sizeof(*all));
    uint8_t *flags = mem_zalloc((size_t)world, 1);
    int st = mine && all && flags ? sherd_host_alloc(e->dev, (void **)&host, STAGING_BYTES) : SHERD_ENOMEM;
    status_context(st, "host memory to compare replicas");
    SHERD_KEEP(st, engine_settle(e));
    for (int u = 0; u < n_units && st == SHERD_OK; u++)
        st = hash_unit(e, host, u, &mine[u]);
    st = comm_agree(e->comm, st);
    if (st == SHERD_OK)
        st = comm_host_gather(e->comm, all, mine, (size_t)n_units * sizeof(*mine));
    if (st == SHERD_OK)
        st = compare(e, all, flags);
    sherd_host_free(e->dev, host);
    mem_free(mine);
    mem_free(all);
    mem_free(flags);
    return st;
}

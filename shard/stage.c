/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The stage table.
 */
#include "shard/stage.h"

#include <stddef.h>

#include <sherd/config.h>

static const struct shard_stage stages[SHERD_STAGES] = {
    { 0, "DDP", SHARD_WHOLE, SHARD_PARTIAL, SHARD_WHOLE, 0 },
    { 1, "ZeRO-1", SHARD_WHOLE, SHARD_PARTIAL, SHARD_SHARDED, 1 },
    { 2, "ZeRO-2", SHARD_WHOLE, SHARD_SHARDED, SHARD_SHARDED, 1 },
    { 3, "ZeRO-3", SHARD_SHARDED, SHARD_SHARDED, SHARD_SHARDED, 0 },
};

const struct shard_stage *stage_find(int number)
{
    for (int i = 0; i < SHERD_STAGES; i++)
        if (stages[i].number == number)
            return &stages[i];
    return NULL;
}

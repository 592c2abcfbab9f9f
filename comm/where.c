/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where ranks are: pinning a rank's place on the board, and comparing what ranks bring to a collective before
 * it runs. See comm/ops.h.
 */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "comm/block.h"
#include "comm/ops.h"

struct board *comm_board(struct sherd_comm *comm)
{
    comm = comm->side ? comm->side : comm;
    return comm->ops->board ? comm->ops->board(comm) : NULL;
}

int comm_at(struct sherd_comm *comm, const struct board_place *place)
{
    struct board *board = comm_board(comm);
    comm->here = *place;
    if (board)
        board_pin(board, comm->world.rank, place);
    return comm->door ? comm->door(comm->door_ctx, place) : SHERD_OK;
}

void comm_at_as(struct sherd_comm *comm, const struct sherd_comm *other)
{
    comm->here = other->here;
}

void comm_beat(struct sherd_comm *comm)
{
    struct board *board = comm_board(comm);
    if (board)
        board_beat(board, comm->world.rank);
}

static void beat(void *comm)
{
    comm_beat(comm);
}

struct file_watch comm_beat_with_files(struct sherd_comm *comm)
{
    return file_watch((struct file_watch){ beat, comm });
}

void comm_compare(struct sherd_comm *comm, int on)
{
    comm->compare = on && comm->world.size > 1;
}

int comm_check_same(struct sherd_comm *comm, enum sherd_collective kind, int64_t elems, enum sherd_dtype type,
    uint32_t detail)
{
    char text[1400];
    int size = comm->world.size, differ = 0;
    if (!comm->compare)
        return SHERD_OK;
    struct block_call mine = {
        .elems = elems, .kind = kind, .type = type, .detail = detail, .place = comm->here
    };
    for (int k = 0; k < SHERD_COLLECTIVES; k++)
        mine.seq += comm->counters.calls[k];
    mine.seq++;
    struct block_call *all = mem_zalloc((size_t)size, sizeof(*all));
    int st = all ? comm_host_gather(comm, all, &mine, sizeof(mine)) : SHERD_ENOMEM;
    for (int r = 0; st == SHERD_OK && r < size; r++)
        differ |= memcmp(&all[r], &mine, sizeof(mine)) != 0;
    if (differ)
        st = SHERD_FAIL(SHERD_ECOMM, "ranks call different collectives: %s",
            block_calls_text(all, size, text, sizeof(text)));
    mem_free(all);
    return st;
}

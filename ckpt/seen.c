/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Whether ranks see one folder. Hosts that each have a folder of that name of their own would notice when the
 * first checkpoint is written, and all that was trained until then would be lost.
 */
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/open.h"
#include "ckpt/save.h"

#define LOOKS 40 /* for a folder that another rank made */
#define LOOK_MS 50

int save_token(char token[SAVE_TOKEN_BYTES])
{
    uint64_t bits;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
        return SHERD_FAIL(SHERD_EIO, "the system gave no random number for the name of a folder");
    snprintf(token, SAVE_TOKEN_BYTES, "%016llx", (unsigned long long)bits);
    return SHERD_OK;
}

int save_see(const char *path)
{
    for (int i = 0; i < LOOKS && !file_is_dir(path); i++)
        nanosleep(&(struct timespec){ 0, LOOK_MS * 1000000L }, NULL);
    if (file_is_dir(path))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_EIO,
        "cannot see %s, which rank 0 made: the folder of checkpoints (run.dir) must lie on storage that all "
        "ranks share, at the same path",
        path);
}

/* Rank 0: a folder that no other has by chance. */
static int make_folder(char name[CKPT_NAME_BYTES], const char *dir, char **path)
{
    char token[SAVE_TOKEN_BYTES];
    SHERD_TRY(save_token(token));
    snprintf(name, CKPT_NAME_BYTES, CKPT_TEMP_PREFIX "look-%s", token);
    *path = ckpt_join(dir, name);
    return *path ? file_mkdirs(*path) : SHERD_ENOMEM;
}

int ckpt_check_shared(struct sherd_comm *comm, const char *dir)
{
    char name[CKPT_NAME_BYTES] = "", *path = NULL;
    int rank = sherd_comm_rank(comm);
    if (sherd_comm_size(comm) == 1)
        return SHERD_OK;
    int st = comm_agree(comm, rank == 0 ? make_folder(name, dir, &path) : SHERD_OK);
    SHERD_TRY_OUT(st);
    SHERD_TRY_OUT(comm_host_broadcast(comm, name, sizeof(name), 0));
    if (rank > 0)
        path = ckpt_join(dir, name);
    st = comm_agree(comm, path ? save_see(path) : SHERD_ENOMEM);
out:
    if (rank == 0 && path && file_is_dir(path)) {
        char *why = st == SHERD_OK ? NULL : mem_strdup(sherd_error());
        if (file_remove_tree(path) != SHERD_OK)
            log_warn("%s was not removed: %s", path, sherd_error());
        if (why)
            status_adopt(st, why);
        mem_free(why);
    }
    mem_free(path);
    return st;
}

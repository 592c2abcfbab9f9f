/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanging folders: see ckpt/swap.h. Where the file system cannot exchange names, the old folder stands
 * under its second name for a moment, and then the new one takes its place.
 */
#include "ckpt/swap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "ckpt/format.h"
#include "ckpt/open.h"

int swap_name(char **out, const char *dir)
{
    char resolved[4096];
    if (!realpath(dir, resolved))
        return SHERD_FAIL(SHERD_EIO, "%s: cannot be resolved: %s", dir, strerror(errno));
    char *base = strrchr(resolved, '/');
    if (!base[1])
        return SHERD_FAIL(
            SHERD_EINVAL, "the root of a file system cannot be replaced: choose another folder");
    *base = '\0';
    *out = mem_printf("%s/%s-%s", resolved, CKPT_MERGE_TEMP, base + 1);
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

int swap_take_file(const char *from, const char *to, int copy)
{
    struct file_map map;
    if (!copy && file_may("link", to, NULL) && link(from, to) == 0)
        return SHERD_OK;
    SHERD_TRY(file_map(&map, from));
    int st = file_write_atomic(to, map.data, map.bytes);
    file_unmap(&map);
    return st;
}

static int take_files(const char *made, const char *dir, int (*left)(const char *name))
{
    char **names;
    int n, st = SHERD_OK;
    SHERD_TRY(file_list(&names, &n, dir));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        char *from = ckpt_join(dir, names[i]), *to = ckpt_join(made, names[i]);
        if (!from || !to)
            st = SHERD_ENOMEM;
        else if (file_is_dir(from) && strcmp(names[i], CKPT_MERGE_TEMP) != 0)
            st = SHERD_FAIL(SHERD_EEXISTS,
                "%s: a folder that holds folders is not replaced: move it away, or choose another", from);
        else if (!file_is_dir(from) && !left(names[i]) && !file_exists(to))
            st = swap_take_file(from, to, 0);
        mem_free(from);
        mem_free(to);
    }
    file_list_free(names, n);
    return st;
}

static int exchange(const char *made, const char *dir)
{
    if (file_may("exchange", dir, NULL) && renameat2(AT_FDCWD, made, AT_FDCWD, dir, RENAME_EXCHANGE) == 0)
        return SHERD_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return SHERD_FAIL(
            SHERD_EIO, "%s: cannot be replaced: %s: choose another folder", dir, strerror(errno));
    char *aside = mem_printf("%s.old", made);
    if (!aside)
        return SHERD_ENOMEM;
    int st = file_rename(dir, aside);
    if (st == SHERD_OK) {
        st = file_rename(made, dir);
        SHERD_KEEP(st, file_rename(aside, st == SHERD_OK ? made : dir));
    }
    mem_free(aside);
    return st;
}

int swap_folders(const char *made, const char *dir, int (*left)(const char *name))
{
    char *parent = mem_strdup(made);
    int st = parent ? take_files(made, dir, left) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = file_sync_dir(made);
    if (st == SHERD_OK)
        st = exchange(made, dir);
    if (st == SHERD_OK) {
        *strrchr(parent, '/') = '\0';
        st = file_sync_dir(parent[0] ? parent : "/");
    }
    if (st == SHERD_OK)
        st = file_remove_tree(made);
    mem_free(parent);
    return st;
}

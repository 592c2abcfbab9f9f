/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd verify: recompute the sums of a checkpoint.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int verify(const char *dir)
{
    char *path = NULL;
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    int st = sherd_ckpt_find(&path, dir);
    if (st == SHERD_OK)
        st = sherd_ckpt_open(&ckpt, path);
    if (st == SHERD_OK)
        st = sherd_ckpt_verify(ckpt);
    int code = EXIT_OK;
    if (st != SHERD_OK) {
        code = out_fail(st);
    } else {
        sherd_ckpt_info_of(ckpt, &info);
        printf("%s: step %lld, %d files, %d tensors: all sums match\n", path, (long long)info.step,
            info.n_files, info.n_tensors);
    }
    sherd_ckpt_close(ckpt);
    free(path);
    return code;
}

int cmd_verify(int argc, char **argv)
{
    const struct command command = { "verify", "DIR", 1, 1,
        "Recomputes the sum of every file of a checkpoint and compares it with the manifest.",
        "DIR is a run folder (its newest complete checkpoint is taken) or one step folder.", NULL, 0 };
    const char *dir;
    int code = args_parse(&command, argc, argv, &dir);
    return code >= 0 ? code : verify(dir);
}

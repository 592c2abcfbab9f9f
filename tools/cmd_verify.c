/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd verify: recompute the sums of one checkpoint, or of all that a run folder holds. Looking only at the
 * newest complete one would call a run sound whose newest checkpoint is cut off.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int verify_step(const char *path)
{
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    int st = sherd_ckpt_open(&ckpt, path);
    if (st == SHERD_OK)
        st = sherd_ckpt_verify(ckpt);
    int code = EXIT_OK;
    if (st != SHERD_OK) {
        code = out_fail(st);
    } else {
        sherd_ckpt_info_of(ckpt, &info);
        printf("%s: step %lld, %d files, %d tensors: all sums match\n", path, (long long)info.step,
            info.n_files, info.n_tensors);
        fflush(stdout); /* in order with what goes to stderr */
    }
    sherd_ckpt_close(ckpt);
    return code;
}

/* Where nothing is called like a step: a step folder, or a text that says where was looked. */
static int verify_found(const char *dir)
{
    char *path = NULL;
    int st = sherd_ckpt_find(&path, dir);
    int code = st == SHERD_OK ? verify_step(path) : out_fail(st);
    free(path);
    return code;
}

static int is_step(const struct dirent *entry)
{
    return strncmp(entry->d_name, "step-", 5) == 0 && isdigit((unsigned char)entry->d_name[5]);
}

static int verify(const char *dir)
{
    struct dirent **steps = NULL;
    int n = scandir(dir, &steps, is_step, versionsort), code = EXIT_OK;
    int length = (int)strlen(dir);
    while (length > 1 && dir[length - 1] == '/')
        length--;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        int one = EXIT_FAILED;
        if (asprintf(&path, "%.*s/%s", length, dir, steps[i]->d_name) < 0)
            fprintf(stderr, "sherd: no memory for the name of a folder\n");
        else
            one = verify_step(path);
        if (one != EXIT_OK)
            code = one;
        free(path);
        free(steps[i]);
    }
    free(steps);
    return n > 0 ? code : verify_found(dir);
}

int cmd_verify(int argc, char **argv)
{
    const struct command command = { "verify", "DIR", 1, 1,
        "Recomputes the sum of every file of a checkpoint and compares it with the manifest.",
        "DIR is a run folder (all of its checkpoints are taken) or one step folder.", NULL, 0 };
    const char *dir;
    int code = args_parse(&command, argc, argv, &dir);
    return code >= 0 ? code : verify(dir);
}

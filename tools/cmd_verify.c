/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd verify: read every byte of one checkpoint, of all that a run folder holds, or of a model folder.
 * Looking only at the newest complete checkpoint would call a run sound whose newest one is cut off.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_plain.h"
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
        printf("%s: step %lld, %d files, %d tensors: all sums match, all values finite\n", path,
            (long long)info.step, info.n_files, info.n_tensors);
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

#define CONFIG_BYTES ((size_t)16 << 20)

/* The model that a config.json describes; *model stays NULL without one. */
static int read_model(const char *dir, struct sherd_model **model)
{
    char path[4096];
    struct sherd_model_config config;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    if (out_check_file(path) != SHERD_OK)
        return SHERD_EIO;
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(CONFIG_BYTES) : NULL;
    size_t bytes = text ? fread(text, 1, CONFIG_BYTES, f) : 0;
    int st = SHERD_OK;
    if (text)
        st = sherd_model_config_json(&config, text, bytes, path);
    if (text && st == SHERD_OK)
        st = sherd_model_build(model, &config);
    free(text);
    if (f)
        fclose(f);
    return st;
}

static int verify_model(const char *dir)
{
    struct sherd_model *model = NULL;
    struct sherd_weights_info info = { 0 };
    char elems[32];
    int st = read_model(dir, &model);
    if (st == SHERD_EUNSUPPORTED) {
        fprintf(stderr, "sherd: %s\nsherd: so the tensors are not compared with a model\n", sherd_error());
        st = SHERD_OK;
    }
    if (st == SHERD_OK)
        st = sherd_weights_verify(dir, model ? sherd_model_spec_of(model) : NULL, &info);
    if (st == SHERD_OK)
        printf("%s: %s values in %d tensors, %d file%s: %s, all values finite\n", dir,
            text_commas(info.elems, elems), info.n_tensors, info.n_files, info.n_files == 1 ? "" : "s",
            model ? "all tensors that config.json asks for" : "sound headers");
    sherd_model_destroy(model);
    return st == SHERD_OK ? EXIT_OK : out_fail(st);
}

static int is_step(const struct dirent *entry)
{
    return strncmp(entry->d_name, "step-", 5) == 0 && isdigit((unsigned char)entry->d_name[5]);
}

static int verify(const char *dir)
{
    if (sherd_weights_found(dir))
        return verify_model(dir);
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
        "Reads every byte of a checkpoint or model: sums, coverage, ties, values that are no numbers.",
        "DIR is a run folder (all of its checkpoints are taken), one step folder, or a model folder, whose\n"
        "tensors are compared with its config.json.",
        NULL, 0 };
    const char *dir;
    int code = args_parse(&command, argc, argv, &dir);
    return code >= 0 ? code : verify(dir);
}

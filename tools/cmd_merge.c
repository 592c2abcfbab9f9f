/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd merge: a checkpoint of any stage and world into one safetensors model.
 */
#include <stdio.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int print_result(const struct sherd_merge_desc *desc, const struct sherd_merge_result *r, int json)
{
    char bytes[32], params[32], took[32];
    if (json)
        return out_json(json_pack("{s:s, s:i, s:i, s:I, s:I, s:f}", "path", desc->to, "files", r->files,
            "tensors", r->tensors, "params", (json_int_t)r->params, "bytes", (json_int_t)r->bytes, "seconds",
            r->seconds));
    printf("%s: %s parameters in %d tensors, %s in %d file%s, in %s\n", desc->to,
        text_commas(r->params, params), r->tensors, text_human_bytes((double)r->bytes, bytes), r->files,
        r->files == 1 ? "" : "s", text_took(r->seconds, took));
    return EXIT_OK;
}

int cmd_merge(int argc, char **argv)
{
    static const char *const names[] = { "bf16", "f16", "f32", NULL };
    static const enum sherd_dtype types[] = { SHERD_BF16, SHERD_F16, SHERD_F32 };
    struct sherd_merge_desc desc = { 0 };
    struct sherd_merge_result result = { 0 };
    int type = -1, json = 0;
    const struct arg args[] = {
        { "dtype", ARG_CHOICE, &type, "bf16|f16|f32",
            "type of the weights written\n(default: the type of the "
            "training)",
            .words = names },
        { "shard-size", ARG_SIZE, &desc.shard_bytes, "SIZE", "largest size of one file (default 5GB)" },
        { "overwrite", ARG_FLAG, &desc.overwrite, NULL, "replace a model that OUT already holds, at once" },
        { "aliases", ARG_FLAG, &desc.aliases, NULL, "write tied tensors under both of their names" },
        { "with", ARG_TEXT, &desc.with, "DIR",
            "copy tokenizer files and generation_config.json from DIR\n(default: those of the run)" },
        { "json", ARG_FLAG, &json, NULL, "print the result as JSON" },
    };
    const struct command command = { "merge", "DIR OUT", 2, 2,
        "Merges a sharded checkpoint into a safetensors model in the folder OUT.",
        "DIR is a run folder (its newest complete checkpoint is taken) or one step folder, of any stage\n"
        "and any number of ranks. Memory use stays small however large the model is.",
        args, COUNT_OF(args) };
    const char *dirs[2];
    int code = args_parse(&command, argc, argv, dirs);
    if (code >= 0)
        return code;
    desc.from = dirs[0];
    desc.to = dirs[1];
    desc.type = type >= 0 ? types[type] : SHERD_DTYPE_NONE;
    int st = sherd_merge(&desc, &result);
    return st == SHERD_OK ? print_result(&desc, &result, json) : out_fail(st);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Folders of other programs: see ckpt/theirs.h. None of them is read: each has a program that makes
 * safetensors of it, and the message says which.
 */
#include "ckpt/theirs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

#define TRAINER "checkpoint-"
#define DEEPSPEED                                                                                                \
    "it is a checkpoint of DeepSpeed; `python zero_to_fp32.py DIR OUT --safe_serialization`, which lies in the " \
    "folder around its steps, makes weights of it, and the model's config.json beside them a model folder"
#define PYTORCH                                                                                                         \
    "it is a distributed checkpoint of PyTorch; `accelerate merge-weights DIR OUT` makes safetensors of Accelerate's, " \
    "torchtitan writes them itself (last_save_in_hf), and config.json beside them makes a model folder"

/* A name that begins and ends so, and what it tells; the first that is found counts. */
static const struct {
    const char *begin, *end, *text;
} signs[] = {
    { "zero_to_fp32", ".py", DEEPSPEED },
    { "global_step", "", DEEPSPEED },
    { "mp_rank_", "_model_states.pt", DEEPSPEED },
    { "zero_pp_rank_", ".pt", DEEPSPEED },
    { "bf16_zero_pp_rank_", ".pt", DEEPSPEED },
    { ".metadata", "", PYTORCH },
    { "__", ".distcp", PYTORCH },
    { "pytorch_model_fsdp_", "", PYTORCH },
    { "pytorch_model", ".bin",
        "it holds pytorch_model.bin, which can run code: save it as safetensors first" },
    { "pytorch_model", ".bin.index.json",
        "it holds pytorch_model.bin in parts, which can run code: save it as safetensors first" },
    { TRAINER, "", NULL },
    { "adapter_model", "", "it is an adapter alone; merge it into its model with peft, and save that" },
    { "consolidated.", ".pth",
        "it holds Llama's weights as Meta packs them; take the folder of the same model from Hugging Face" },
    { "", ".gguf", "it holds weights for llama.cpp; take the folder that they were made from" },
    { "DONE_", "", "it is a checkpoint of llm.c, whose dev/eval/export_hf.py makes a model folder of it" },
    { "model", ".safetensors", "it is a model folder of Hugging Face; model.from begins with it" },
    { "model", ".safetensors.index.json", "it is a model folder of Hugging Face; model.from begins with it" },
};

static int is_sign(const char *name, size_t i)
{
    size_t n = strlen(signs[i].begin);
    return text_starts(name, signs[i].begin) && text_ends(name, signs[i].end) &&
           (signs[i].text || (name[n] >= '0' && name[n] <= '9'));
}

/* Trainer's folders: the one with the highest number. */
static void newest(char out[CKPT_THEIRS_BYTES], const char *dir, char *const *names, int n)
{
    long most = -1;
    for (int i = 0; i < n; i++)
        if (text_starts(names[i], TRAINER))
            most = MAX(most, strtol(names[i] + strlen(TRAINER), NULL, 10));
    snprintf(out, CKPT_THEIRS_BYTES,
        "; it holds checkpoints of Hugging Face's Trainer, each a model folder: name %s/" TRAINER "%ld", dir,
        most);
}

void ckpt_theirs(char out[CKPT_THEIRS_BYTES], const char *dir)
{
    char **names = NULL;
    int n = 0;
    out[0] = '\0';
    if (!file_is_dir(dir) || file_list(&names, &n, dir) != SHERD_OK)
        return;
    for (size_t s = 0; s < ARRAY_LEN(signs) && !out[0]; s++)
        for (int i = 0; i < n && !out[0]; i++) {
            if (!is_sign(names[i], s))
                continue;
            if (signs[s].text)
                snprintf(out, CKPT_THEIRS_BYTES, "; %s", signs[s].text);
            else
                newest(out, dir, names, n);
        }
    file_list_free(names, n);
}

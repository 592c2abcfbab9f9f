/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Copying the files beside a model: see ckpt/companions.h.
 */
#include "ckpt/companions.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/swap.h"

static const char *const companions[] = { COMPANION_TOKENIZER, "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "generation_config.json" };

static int same_bytes(const char *a, const char *b)
{
    struct file_map x, y = { 0 };
    if (!file_exists(a) || !file_exists(b) || file_map(&x, a) != SHERD_OK)
        return 0;
    int same = file_map(&y, b) == SHERD_OK && x.bytes == y.bytes &&
               (x.bytes == 0 || memcmp(x.data, y.data, x.bytes) == 0);
    file_unmap(&x);
    file_unmap(&y);
    return same;
}

int companions_same_file(const char *a, const char *b, const char *name)
{
    char *x = mem_printf("%s/%s", a, name), *y = mem_printf("%s/%s", b, name);
    int same = x && y && same_bytes(x, y);
    mem_free(x);
    mem_free(y);
    return same;
}

int companions_copy_file(const char *from, const char *to, const char *name)
{
    char *source = mem_printf("%s/%s", from, name), *target = mem_printf("%s/%s", to, name);
    int st = SHERD_OK;
    if (!source || !target)
        st = SHERD_ENOMEM;
    else if (!same_bytes(source, target))
        st = swap_take_file(source, target, 1);
    mem_free(source);
    mem_free(target);
    return st;
}

int companions_copy(const char *from, const char *to, int *n)
{
    *n = 0;
    for (size_t i = 0; i < ARRAY_LEN(companions); i++) {
        if (!file_has(from, companions[i]))
            continue;
        SHERD_TRY(companions_copy_file(from, to, companions[i]));
        *n += 1;
    }
    return SHERD_OK;
}

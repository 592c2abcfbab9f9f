/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A tokenizer.json from anywhere. What is taken encodes: ids have texts, and unless something is normalized
 * or taken along, the texts together are the text again.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "data/tokenizer.h"

static const char text[] =
    "Don't stop: caf\xc3\xa9 12345\r\n\n  \xe6\x97\xa5\xe6\x9c\xac <|endoftext|> \xf0\x9f\x99\x82 e\xcc\x81 ab";

static int changes_text(const struct sherd_tokenizer *t)
{
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].lstrip || t->added[i].rstrip)
            return 1;
    return t->compose || t->prefix_space;
}

static void encode(const struct sherd_tokenizer *t)
{
    int32_t *ids;
    int64_t n;
    size_t at = 0;
    int st = sherd_tokenizer_encode(t, text, strlen(text), 0, &ids, &n);
    FUZZ_CHECK(st == SHERD_OK);
    for (int64_t i = 0; i < n; i++) {
        size_t size;
        const uint8_t *bytes = tokenizer_token(t, ids[i], &size);
        FUZZ_CHECK(bytes);
        if (!changes_text(t))
            FUZZ_CHECK(at + size <= strlen(text) && memcmp(text + at, bytes, size) == 0);
        at += size;
    }
    FUZZ_CHECK(changes_text(t) || at == strlen(text));
    free(ids);
}

static void quiet(void *ctx, enum sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sherd_tokenizer *t;
    sherd_log_set(quiet, NULL, SHERD_LOG_ERROR);
    int st = tokenizer_parse(&t, (const char *)data, bytes, "x.json");
    if (st == SHERD_OK)
        encode(t);
    else
        FUZZ_CHECK((st == SHERD_EFORMAT || st == SHERD_EUNSUPPORTED) && strstr(sherd_error(), "x.json"));
    tokenizer_close(t);
    return 0;
}

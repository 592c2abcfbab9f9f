/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Manifests from anywhere: what is taken covers every element once, and prints to a text that reads back and
 * prints the same.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/manifest.h"

static void check_tensors(const struct manifest *m)
{
    for (int i = 0; i < m->n_tensors; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        int64_t at = 0;
        for (int k = 0; k < t->n_spans; k++) {
            FUZZ_CHECK(t->spans[k].first == at && t->spans[k].elems > 0);
            FUZZ_CHECK(m->file_of[CKPT_WEIGHTS][t->spans[k].rank] >= 0);
            at += t->spans[k].elems;
        }
        FUZZ_CHECK(at == t->elems && manifest_find(m, t->name) == i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct manifest m, again;
    char *text, *second;
    int st = manifest_parse(&m, (const char *)data, bytes, "fuzz");
    if (st != SHERD_OK) {
        FUZZ_CHECK(
            (st == SHERD_EFORMAT || st == SHERD_EUNSUPPORTED) && strncmp(sherd_error(), "fuzz", 4) == 0);
        return 0;
    }
    check_tensors(&m);
    FUZZ_CHECK(manifest_print(&text, &m) == SHERD_OK);
    FUZZ_CHECK(manifest_parse(&again, text, strlen(text), "again") == SHERD_OK);
    FUZZ_CHECK(manifest_print(&second, &again) == SHERD_OK);
    FUZZ_CHECK(strcmp(text, second) == 0);
    mem_free(text);
    mem_free(second);
    manifest_finish(&m);
    manifest_finish(&again);
    return 0;
}

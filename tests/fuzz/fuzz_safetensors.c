/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Safetensors headers from anywhere: what is taken covers the file exactly, tensor by tensor, and writing the
 * same tensors again gives a header that is taken too.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/safetensors.h"

static void write_again(const struct st_header *h)
{
    struct st_header again;
    char *text;
    size_t bytes;
    uint64_t file_bytes;
    struct st_item *items = mem_zalloc((size_t)h->n, sizeof(*items));
    FUZZ_CHECK(items);
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        const struct st_entry *e = &h->entries[i];
        if (e->type != SHERD_DTYPE_NONE)
            items[n++] = (struct st_item){ e->name, e->type, e->dims, e->shape };
    }
    FUZZ_CHECK(st_header_text(&text, &bytes, &file_bytes, items, n, h->meta, h->n_meta) == SHERD_OK);
    FUZZ_CHECK(st_parse(&again, text, bytes, file_bytes, "again") == SHERD_OK);
    FUZZ_CHECK(again.n == n && again.n_meta == h->n_meta);
    st_finish(&again);
    mem_free(text);
    mem_free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct st_header h;
    int st = st_parse(&h, data, bytes, bytes, "fuzz");
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_EFORMAT && strncmp(sherd_error(), "fuzz", 4) == 0);
        return 0;
    }
    uint64_t at = h.bytes;
    for (int i = 0; i < h.n; i++) {
        FUZZ_CHECK(h.entries[i].begin == at);
        FUZZ_CHECK(st_find(&h, h.entries[i].name) == &h.entries[i]);
        at = h.entries[i].end;
    }
    FUZZ_CHECK(at == bytes);
    write_again(&h);
    st_finish(&h);
    return 0;
}

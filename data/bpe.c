/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Merging by a heap of the pairs that stand side by side, so that a word of a megabyte takes no square of its
 * length; of equal merges the leftmost goes first.
 */
#include "data/bpe.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define SEEN_ROWS 16384 /* a power of two */
#define SEEN_BYTES 24
#define SEEN_IDS 8
#define WORD_MOST ((size_t)1 << 30)

struct bpe_symbol {
    int32_t id, before, after; /* id -1: merged into the one before; places, -1 past the ends */
};

struct bpe_step {
    int32_t merge, place; /* order of going first: merge, then place */
};

struct bpe_seen {
    uint8_t bytes, n; /* bytes 0: an empty row */
    uint8_t word[SEEN_BYTES];
    int32_t ids[SEEN_IDS];
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t hash_bytes(const uint8_t *s, size_t n)
{
    uint64_t h = n, part;
    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&part, s, 8);
        h = mix(h ^ part);
    }
    part = 0;
    memcpy(&part, s, n);
    return mix(h ^ part);
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    return mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static int make_index(struct bpe_index *index, int64_t n)
{
    uint32_t size = 16;
    while (size < 2 * (uint64_t)n)
        size *= 2;
    index->slots = mem_zalloc(size, sizeof(*index->slots));
    index->mask = size - 1;
    return index->slots ? SHERD_OK : SHERD_ENOMEM;
}

static size_t token_size(const struct bpe *b, int32_t id)
{
    return (size_t)(b->at[id + 1] - b->at[id]);
}

static uint32_t *word_slot(const struct bpe *b, const uint8_t *s, size_t n)
{
    uint32_t i = (uint32_t)hash_bytes(s, n) & b->words.mask;
    for (;; i = (i + 1) & b->words.mask) {
        uint32_t *slot = &b->words.slots[i];
        if (*slot == 0)
            return slot;
        int32_t id = (int32_t)*slot - 1;
        if (token_size(b, id) == n && memcmp(b->pool + b->at[id], s, n) == 0)
            return slot;
    }
}

static uint32_t *pair_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t i = (uint32_t)hash_pair(left, right) & b->pairs.mask;
    for (;; i = (i + 1) & b->pairs.mask) {
        uint32_t *slot = &b->pairs.slots[i];
        if (*slot == 0)
            return slot;
        const struct bpe_merge *m = &b->merges[*slot - 1];
        if (m->left == left && m->right == right)
            return slot;
    }
}

int bpe_index(struct bpe *b, int *bad)
{
    SHERD_TRY(make_index(&b->pairs, b->n_merges));
    SHERD_TRY(make_index(&b->words, b->vocab));
    for (int i = 0; i < b->n_merges; i++) {
        uint32_t *slot = pair_slot(b, b->merges[i].left, b->merges[i].right);
        *bad = i;
        if (*slot)
            return SHERD_EINVAL;
        *slot = (uint32_t)i + 1;
    }
    for (int32_t id = 0; id < b->vocab; id++) {
        uint32_t *slot = word_slot(b, b->pool + b->at[id], token_size(b, id));
        if (token_size(b, id) > 0 && !*slot)
            *slot = (uint32_t)id + 1;
    }
    return SHERD_OK;
}

void bpe_finish(struct bpe *b)
{
    mem_free(b->pool);
    mem_free(b->at);
    mem_free(b->merges);
    mem_free(b->pairs.slots);
    mem_free(b->words.slots);
}

int32_t bpe_find(const struct bpe *b, const uint8_t *bytes, size_t n)
{
    return n > 0 ? (int32_t)*word_slot(b, bytes, n) - 1 : -1;
}

void bpe_work_finish(struct bpe_work *w)
{
    mem_free(w->symbols);
    mem_free(w->heap);
    mem_free(w->seen);
    mem_free(w->ids);
}

int bpe_push(struct bpe_work *w, int32_t id)
{
    SHERD_TRY(mem_grow(&w->ids, &w->cap, w->n + 1, sizeof(*w->ids)));
    w->ids[w->n++] = id;
    return SHERD_OK;
}

static int before(struct bpe_step a, struct bpe_step b)
{
    return a.merge != b.merge ? a.merge < b.merge : a.place < b.place;
}

/* Puts the pair at a place on the heap if it merges. The heap has room: one step for each symbol, and two
 * more for each merge. */
static void offer(const struct bpe *b, struct bpe_work *w, int32_t place)
{
    int32_t after = w->symbols[place].after;
    uint32_t slot = after >= 0 ? *pair_slot(b, w->symbols[place].id, w->symbols[after].id) : 0;
    if (!slot)
        return;
    struct bpe_step step = { (int32_t)slot - 1, place };
    int i = w->heap_n++;
    for (; i > 0 && before(step, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = step;
}

static struct bpe_step take(struct bpe_work *w)
{
    struct bpe_step top = w->heap[0], last = w->heap[--w->heap_n];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= w->heap_n)
            break;
        if (child + 1 < w->heap_n && before(w->heap[child + 1], w->heap[child]))
            child++;
        if (!before(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Does a step unless what it was about has been merged since. A pair that by now makes the same token from
 * other parts is still merged at this step's turn. */
static void merge(const struct bpe *b, struct bpe_work *w, struct bpe_step step)
{
    struct bpe_symbol *s = &w->symbols[step.place];
    if (s->id < 0 || s->after < 0)
        return;
    uint32_t slot = *pair_slot(b, s->id, w->symbols[s->after].id);
    if (!slot || b->merges[slot - 1].into != b->merges[step.merge].into)
        return;
    struct bpe_symbol *gone = &w->symbols[s->after];
    s->id = b->merges[step.merge].into;
    s->after = gone->after;
    gone->id = -1;
    if (s->after >= 0)
        w->symbols[s->after].before = step.place;
    if (s->before >= 0)
        offer(b, w, s->before);
    offer(b, w, step.place);
}

static int merge_word(const struct bpe *b, struct bpe_work *w, const uint8_t *word, int n)
{
    SHERD_TRY(mem_grow(&w->symbols, &w->symbols_cap, n, sizeof(*w->symbols)));
    SHERD_TRY(mem_grow(&w->heap, &w->heap_cap, 3 * n, sizeof(*w->heap)));
    for (int i = 0; i < n; i++)
        w->symbols[i] = (struct bpe_symbol){ b->byte[word[i]], i - 1, i + 1 < n ? i + 1 : -1 };
    w->heap_n = 0;
    for (int i = 0; i < n; i++)
        offer(b, w, i);
    while (w->heap_n > 0)
        merge(b, w, take(w));
    for (int32_t i = 0; i >= 0; i = w->symbols[i].after)
        SHERD_TRY(bpe_push(w, w->symbols[i].id));
    return SHERD_OK;
}

static int long_word(const struct bpe *b, struct bpe_work *w, const uint8_t *word, size_t n)
{
    int32_t id = b->whole_first ? bpe_find(b, word, n) : -1;
    if (id >= 0)
        return bpe_push(w, id);
    if (n > WORD_MOST / 4)
        return SHERD_FAIL(
            SHERD_EUNSUPPORTED, "one word of %zu bytes: at most %zu are merged", n, WORD_MOST / 4);
    return merge_word(b, w, word, (int)n);
}

int bpe_word(const struct bpe *b, struct bpe_work *w, const uint8_t *word, size_t n)
{
    assert(n > 0);
    if (n > SEEN_BYTES)
        return long_word(b, w, word, n);
    if (!w->seen && !(w->seen = mem_zalloc(SEEN_ROWS, sizeof(*w->seen))))
        return SHERD_ENOMEM;
    struct bpe_seen *row = &w->seen[hash_bytes(word, n) & (SEEN_ROWS - 1)];
    if (row->bytes != n || memcmp(row->word, word, n) != 0) {
        int first = w->n;
        SHERD_TRY(long_word(b, w, word, n));
        if (w->n - first > SEEN_IDS)
            return SHERD_OK;
        row->bytes = (uint8_t)n;
        row->n = (uint8_t)(w->n - first);
        memcpy(row->word, word, n);
        memcpy(row->ids, w->ids + first, row->n * sizeof(*row->ids));
        return SHERD_OK;
    }
    for (int i = 0; i < row->n; i++)
        SHERD_TRY(bpe_push(w, row->ids[i]));
    return SHERD_OK;
}

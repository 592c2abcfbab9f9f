/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Byte-level BPE: a vocabulary of byte strings, the merges in their order, and the merging of one word.
 * Knows nothing of text, files or what cuts words.
 */
#ifndef SHERD_DATA_BPE_H
#define SHERD_DATA_BPE_H

#include <stddef.h>
#include <stdint.h>

/* A hash of 64 bit keys, or of the tokens by their bytes. Slots hold an index plus one; 0 = free. */
struct bpe_index {
    uint32_t *slots;
    uint32_t mask;
};

struct bpe_merge {
    int32_t left, right, into;
};

struct bpe {
    uint8_t *pool;            /* bytes of all tokens */
    uint64_t *at;             /* [vocab + 1]: token i is pool[at[i]..at[i + 1]); empty where an id is free */
    int32_t vocab;            /* largest id + 1 */
    int32_t byte[256];        /* the tokens of single bytes */
    struct bpe_merge *merges; /* earlier ones go first */
    int n_merges;
    struct bpe_index pairs, words;
    int whole_first; /* a word that is a token is not merged from its bytes */
};

/* Builds the indexes once pool, at, byte and merges are there. EINVAL, no text: merge *bad is there twice. */
int bpe_index(struct bpe *bpe, int *bad);
void bpe_finish(struct bpe *bpe);
/* The id of the token with these bytes, or -1. */
int32_t bpe_find(const struct bpe *bpe, const uint8_t *bytes, size_t n);

/* What one thread needs to encode. Zero-initialize; grows as words need it. */
struct bpe_work {
    struct bpe_symbol *symbols;
    struct bpe_step *heap;
    int symbols_cap, heap_cap, heap_n;
    struct bpe_seen *seen; /* short words met before, and their ids */
    int32_t *ids;
    int n, cap;
};
void bpe_work_finish(struct bpe_work *work);
/* Appends the ids of a word to work->ids. */
int bpe_word(const struct bpe *bpe, struct bpe_work *work, const uint8_t *word, size_t n);
int bpe_push(struct bpe_work *work, int32_t id);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Verifying: every byte of a checkpoint or of a model folder is read once. Sums, headers against the
 * manifest, coverage by the model, ties, and values that are no numbers.
 */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/half.h"
#include "base/status.h"
#include "ckpt/match.h"
#include "ckpt/open.h"

#define PIECE_BYTES CKPT_STAGING_BYTES

/* Index of the first value that is infinite or no number; -1 for none, also for types without such values. */
static int64_t first_nonfinite(const void *x, enum sherd_dtype type, int64_t n)
{
    const char *at = x;
    for (int64_t i = 0; i < n && type == SHERD_F32; i++) {
        float f;
        memcpy(&f, at + 4 * i, sizeof(f));
        if (!isfinite(f))
            return i;
    }
    for (int64_t i = 0; i < n && (type == SHERD_BF16 || type == SHERD_F16); i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof(half));
        if (!isfinite(type == SHERD_BF16 ? bf16_to_float(half) : f16_to_float(half)))
            return i;
    }
    return -1;
}

static int nonfinite(const char *path, const char *name, int64_t element)
{
    return SHERD_FAIL(SHERD_ENONFINITE,
        "%s: tensor '%s', element %lld is infinite or no number: the training had gone wrong before this was "
        "saved; use an earlier one",
        path, name, (long long)element);
}

/* ---- checkpoints ---- */

/* The entries that lie in bytes [begin, begin + n) of a file hold numbers. Entries are aligned to their
 * types, pieces to more. */
static int check_values(
    const struct st_header *h, const char *data, uint64_t begin, uint64_t n, const char *path)
{
    for (int i = 0; i < h->n; i++) {
        const struct st_entry *e = &h->entries[i];
        uint64_t from = MAX(begin, e->begin), to = MIN(begin + n, e->end);
        uint64_t size = sherd_dtype_bytes(e->type);
        if (from >= to || !size)
            continue;
        int64_t bad = first_nonfinite(data + (from - begin), e->type, (int64_t)((to - from) / size));
        if (bad >= 0)
            return nonfinite(path, e->name, (int64_t)((from - e->begin) / size) + bad);
    }
    return SHERD_OK;
}

static int verify_file(struct sherd_ckpt *ckpt, int i, struct sum *sum)
{
    const struct manifest_file *f = &ckpt->manifest.files[i];
    char text[SUM_TEXT_BYTES], *path = NULL;
    int st = SHERD_OK, finite = SHERD_OK;
    SHERD_TRY_OUT(ckpt_use_file(ckpt, i, &path));
    for (uint64_t at = 0; at < f->bytes; at += PIECE_BYTES) {
        size_t n = (size_t)MIN(f->bytes - at, PIECE_BYTES);
        SHERD_TRY_OUT(file_pread(ckpt->fd, ckpt->staging, n, at, path));
        sum_add(sum, ckpt->staging, n);
        if (ckpt_checks_reads(ckpt))
            SHERD_TRY_OUT(ckpt_check_blocks(ckpt, i, at, at + n, ckpt->staging, path));
        if (finite == SHERD_OK)
            finite = check_values(ckpt->headers[i], ckpt->staging, at, n, path);
    }
    sum_text(sum, text);
    if (strcmp(text, f->sum))
        SHERD_TRY_OUT(SHERD_FAIL(SHERD_ECORRUPT,
            "%s: XXH3-128 is %s, the manifest says %s: the file was changed after it was saved; use another "
            "checkpoint",
            path, text, f->sum));
    st = finite; /* its text, if there is one, is the last */
out:
    mem_free(path);
    return st;
}

int sherd_ckpt_verify(struct sherd_ckpt *ckpt)
{
    int worst = SHERD_OK;
    SHERD_TRY(ckpt_staging(ckpt));
    SHERD_TRY(ckpt_check_headers(ckpt, CKPT_WEIGHTS));
    SHERD_TRY(ckpt_check_headers(ckpt, CKPT_STATES));
    for (int i = 0; i < ckpt->manifest.n_files; i++) {
        struct sum *sum;
        SHERD_TRY(sum_create(&sum));
        int st = verify_file(ckpt, i, sum);
        sum_destroy(sum);
        if (st != SHERD_OK && st != SHERD_ENONFINITE)
            return st;
        worst = st == SHERD_OK ? worst : st;
    }
    return worst;
}

/* ---- model folders ---- */

static int check_tensor(struct hf_model *m, const struct hf_tensor *t, void *buffer)
{
    enum sherd_dtype type = t->entry->type;
    if (!st_convertible(type))
        return SHERD_OK;
    int64_t most = (int64_t)(PIECE_BYTES / sherd_dtype_bytes(type));
    for (int64_t at = 0; at < t->entry->elems; at += most) {
        int64_t n = MIN(t->entry->elems - at, most);
        SHERD_TRY(hf_read(m, t, at, n, buffer));
        int64_t bad = first_nonfinite(buffer, type, n);
        if (bad >= 0)
            return nonfinite(m->path, t->name, at + bad);
    }
    return SHERD_OK;
}

static int check_tie(struct hf_model *m, const struct match *match, int i, char *a, char *b)
{
    const struct hf_tensor *x = match->source[i], *y = match->second[i];
    if (!y)
        return SHERD_OK;
    if (x->entry->type != y->entry->type)
        return match_differ(match, i);
    size_t size = sherd_dtype_bytes(x->entry->type);
    int64_t most = (int64_t)(PIECE_BYTES / size);
    for (int64_t at = 0; at < x->entry->elems; at += most) {
        int64_t n = MIN(x->entry->elems - at, most);
        SHERD_TRY(hf_read(m, x, at, n, a));
        SHERD_TRY(hf_read(m, y, at, n, b));
        if (memcmp(a, b, (size_t)n * size) != 0)
            return match_differ(match, i);
    }
    return SHERD_OK;
}

/* Against a model: nothing missing, nothing left over, ties kept. */
static int check_model(struct hf_model *m, const struct sherd_model_spec *spec, char *a, char *b)
{
    struct shard_layout layout;
    struct match match = { 0 };
    SHERD_TRY(layout_init(&layout, spec, 1));
    int st = match_init(&match, m, &layout);
    for (int i = 0; i < layout.n_tensors && st == SHERD_OK; i++)
        st = check_tie(m, &match, i, a, b);
    match_finish(&match);
    layout_finish(&layout);
    return st;
}

int sherd_weights_verify(
    const char *dir, const struct sherd_model_spec *spec, struct sherd_weights_info *info)
{
    struct hf_model *m;
    SHERD_TRY(hf_open(&m, dir));
    char *a = mem_aligned(4096, PIECE_BYTES), *b = mem_aligned(4096, PIECE_BYTES);
    int st = a && b ? SHERD_OK : SHERD_ENOMEM;
    *info = (struct sherd_weights_info){ .n_files = m->n_files, .n_tensors = m->n_tensors };
    if (st == SHERD_OK && spec)
        st = check_model(m, spec, a, b);
    for (int i = 0; i < m->n_tensors && st == SHERD_OK; i++) {
        info->elems += m->tensors[i].entry->elems;
        st = check_tensor(m, &m->tensors[i], a);
    }
    mem_free(a);
    mem_free(b);
    hf_close(m);
    return st;
}

int sherd_weights_found(const char *dir)
{
    return hf_is_model(dir);
}

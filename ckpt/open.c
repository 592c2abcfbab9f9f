/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Opening, listing and reading a checkpoint, and the sums of its files: see sherd/ckpt.h and ckpt/open.h.
 * Headers are read when first needed; one file is open at a time.
 */
#include "ckpt/open.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"

int ckpt_manifest_text(char **text, size_t *bytes, const char *path)
{
    char *file = ckpt_join(path, CKPT_MANIFEST);
    if (!file)
        return SHERD_ENOMEM;
    int st = SHERD_OK;
    uint64_t size;
    if (!file_is_dir(path))
        SHERD_TRY_OUT(SHERD_FAIL(SHERD_ENOTFOUND, "%s: there is no such folder", path));
    st = file_size(&size, file); /* a folder that cannot be looked into may well have one */
    if (st == SHERD_ENOTFOUND)
        SHERD_TRY_OUT(SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: no " CKPT_MANIFEST ": not a checkpoint (a step of a run), or a save that was "
            "not finished",
            path));
    SHERD_TRY_OUT(st);
    SHERD_TRY_OUT(file_read_text(text, bytes, file, CKPT_MAX_MANIFEST));
out:
    mem_free(file);
    return st;
}

int ckpt_open_text(struct sherd_ckpt **out, const char *path, const char *text, size_t bytes)
{
    int st = SHERD_OK;
    char *file = ckpt_join(path, CKPT_MANIFEST);
    struct sherd_ckpt *ckpt = mem_zalloc(1, sizeof(*ckpt));
    if (ckpt)
        ckpt->fd = ckpt->fd_file = ckpt->window.file = -1;
    if (!ckpt || !file)
        SHERD_TRY_OUT(SHERD_ENOMEM);
    SHERD_TRY_OUT(manifest_parse(&ckpt->manifest, text, bytes, file));
    ckpt->bytes_read = bytes;
    ckpt->path = mem_strdup(path);
    ckpt->headers = mem_zalloc((size_t)ckpt->manifest.n_files, sizeof(*ckpt->headers));
    if (!ckpt->path || !ckpt->headers)
        SHERD_TRY_OUT(SHERD_ENOMEM);
    *out = ckpt;
out:
    mem_free(file);
    if (st != SHERD_OK)
        sherd_ckpt_close(ckpt);
    return st;
}

static int check_size(const struct sherd_ckpt *ckpt, const struct manifest_file *f, const char *path)
{
    uint64_t bytes;
    int st = file_size(&bytes, path);
    if (st == SHERD_ENOTFOUND)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "%s is missing (rank %d's %s of step %lld): copy it back, or use another "
            "checkpoint",
            path, f->rank, f->kind == CKPT_WEIGHTS ? "weights" : "optimizer states",
            (long long)ckpt->manifest.meta.step);
    SHERD_TRY(st);
    if (bytes != f->bytes)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s has %llu bytes, the manifest says %llu: it is %s; use another checkpoint", path,
            (unsigned long long)bytes, (unsigned long long)f->bytes,
            bytes < f->bytes ? "cut off"
                             : "not the "
                               "file that was saved");
    return SHERD_OK;
}

int ckpt_check_files(const struct sherd_ckpt *ckpt)
{
    for (int i = 0; i < ckpt->manifest.n_files; i++) {
        char *path = ckpt_join(ckpt->path, ckpt->manifest.files[i].name);
        if (!path)
            return SHERD_ENOMEM;
        int st = check_size(ckpt, &ckpt->manifest.files[i], path);
        mem_free(path);
        SHERD_TRY(st);
    }
    return SHERD_OK;
}

int sherd_ckpt_open(struct sherd_ckpt **out, const char *path)
{
    char *text = NULL;
    size_t bytes;
    *out = NULL;
    SHERD_TRY(ckpt_manifest_text(&text, &bytes, path));
    int st = ckpt_open_text(out, path, text, bytes);
    mem_free(text);
    SHERD_TRY(st);
    st = ckpt_check_files(*out);
    if (st != SHERD_OK) {
        sherd_ckpt_close(*out);
        *out = NULL;
    }
    return st;
}

void sherd_ckpt_close(struct sherd_ckpt *ckpt)
{
    if (!ckpt)
        return;
    for (int i = 0; ckpt->headers && i < ckpt->manifest.n_files; i++) {
        if (ckpt->headers[i])
            st_finish(ckpt->headers[i]);
        mem_free(ckpt->headers[i]);
    }
    if (ckpt->fd >= 0)
        (void)file_close(ckpt->fd, ckpt->path);
    mem_free(ckpt->headers);
    mem_free(ckpt->staging);
    mem_free(ckpt->window.own);
    mem_free(ckpt->path);
    manifest_finish(&ckpt->manifest);
    mem_free(ckpt);
}

/* The file must say the step, rank and world that the manifest says: a file of another save with the same
 * name and size is found here. */
static int check_meta(
    const struct sherd_ckpt *ckpt, const struct st_header *header, const struct manifest_file *f)
{
    const struct {
        const char *key;
        long long value;
    } want[] = { { CKPT_META_STEP, ckpt->manifest.meta.step }, { CKPT_META_RANK, f->rank },
        { CKPT_META_WORLD, ckpt->manifest.world } };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        char text[24];
        const char *has = st_meta_find(header, want[i].key);
        snprintf(text, sizeof(text), "%lld", want[i].value);
        if (!has || strcmp(has, text))
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s/%s says %s %s, the manifest says %s: the file is from another save", ckpt->path, f->name,
                want[i].key, has ? has : "(none)", text);
    }
    return SHERD_OK;
}

int ckpt_use_file(struct sherd_ckpt *ckpt, int i, char **path)
{
    const struct manifest_file *f = &ckpt->manifest.files[i];
    *path = ckpt_join(ckpt->path, f->name);
    if (!*path)
        return SHERD_ENOMEM;
    if (ckpt->fd_file == i)
        return SHERD_OK;
    int fd = ckpt->fd;
    ckpt->fd = ckpt->fd_file = -1;
    SHERD_TRY(file_close(fd, ckpt->path));
    SHERD_TRY(check_size(ckpt, f, *path));
    SHERD_TRY(file_open_read(&ckpt->fd, *path));
    ckpt->fd_file = i;
    return SHERD_OK;
}

/* ckpt_use_file, and its header is at hand. */
static int use_header(struct sherd_ckpt *ckpt, int i, char **path)
{
    SHERD_TRY(ckpt_use_file(ckpt, i, path));
    if (ckpt->headers[i])
        return SHERD_OK;
    struct st_header *header = mem_zalloc(1, sizeof(*header));
    if (!header)
        return SHERD_ENOMEM;
    int st = st_read(header, ckpt->fd, *path);
    if (st == SHERD_OK) {
        ckpt->bytes_read += header->bytes;
        st = check_meta(ckpt, header, &ckpt->manifest.files[i]);
        if (st != SHERD_OK)
            st_finish(header);
    }
    if (st != SHERD_OK) {
        mem_free(header);
        return st;
    }
    ckpt->headers[i] = header;
    return SHERD_OK;
}

/* The entry in file `i` that holds a span. */
static int find_entry(struct sherd_ckpt *ckpt, int i, int state, const struct manifest_tensor *t,
    const struct manifest_span *span, const char *path, const struct st_entry **out)
{
    const char *sep = state < 0 ? "" : "/", *what = state < 0 ? "" : ckpt->manifest.meta.states[state];
    enum sherd_dtype type = state < 0 ? t->type : SHERD_F32;
    char *name = mem_printf("%s%s%s", t->name, sep, what);
    if (!name)
        return SHERD_ENOMEM;
    const struct st_entry *e = st_find(ckpt->headers[i], name);
    int st = SHERD_OK;
    if (!e)
        st = SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' is missing, the manifest says it is there: restore the file, or use another checkpoint",
            path, name);
    else if (e->type != type || e->elems != span->elems)
        st =
            SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' has %lld elements of %s, the manifest says %lld of %s",
                path, name, (long long)e->elems, e->type_name, (long long)span->elems, st_type_name(type));
    mem_free(name);
    *out = e;
    return st;
}

/* The span that holds an element. */
static int span_of(const struct manifest_tensor *t, int64_t element)
{
    int low = 0, high = t->n_spans - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (t->spans[mid].first <= element)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

int ckpt_locate(
    struct sherd_ckpt *ckpt, int state, int tensor, int64_t element, int *file, uint64_t *offset, int64_t *n)
{
    const struct manifest_tensor *t = &ckpt->manifest.tensors[tensor];
    const struct manifest_span *s = &t->spans[span_of(t, element)];
    const struct st_entry *e;
    char *path = NULL;
    *file = ckpt->manifest.file_of[state < 0 ? CKPT_WEIGHTS : CKPT_STATES][s->rank];
    int st = ckpt->headers[*file] ? SHERD_OK : use_header(ckpt, *file, &path);
    mem_free(path);
    SHERD_TRY(st);
    st = find_entry(ckpt, *file, state, t, s, ckpt->manifest.files[*file].name, &e);
    if (st != SHERD_OK)
        return status_context(st, "%s", ckpt->path);
    size_t size = sherd_dtype_bytes(state < 0 ? t->type : SHERD_F32);
    *offset = e->begin + (uint64_t)(element - s->first) * size;
    *n = s->first + s->elems - element;
    return SHERD_OK;
}

/* Elements [first, first + n) of a tensor as they are stored; `state` is an index or -1 for the weight. */
static int read_raw(struct sherd_ckpt *ckpt, int state, int tensor, int64_t first, int64_t n, void *out)
{
    const struct manifest_tensor *t = &ckpt->manifest.tensors[tensor];
    size_t size = sherd_dtype_bytes(state < 0 ? t->type : SHERD_F32);
    char *to = out;
    while (n > 0) {
        int file = 0;
        uint64_t offset = 0;
        int64_t m = 0;
        SHERD_TRY(ckpt_locate(ckpt, state, tensor, first, &file, &offset, &m));
        m = MIN(m, n);
        int st = ckpt_fetch(ckpt, file, offset, (size_t)m * size, to);
        if (st != SHERD_OK)
            return status_context(st, "tensor '%s'", t->name);
        to += (size_t)m * size;
        first += m;
        n -= m;
    }
    return SHERD_OK;
}

int ckpt_check_headers(struct sherd_ckpt *ckpt, enum ckpt_kind kind)
{
    const struct manifest *m = &ckpt->manifest;
    for (int t = 0; t < m->n_tensors; t++) {
        const struct manifest_tensor *tensor = &m->tensors[t];
        int n_states = kind == CKPT_STATES && !tensor->frozen ? m->meta.n_states : 0;
        for (int s = 0; s < tensor->n_spans; s++) {
            int i = m->file_of[kind][tensor->spans[s].rank], st = SHERD_OK;
            const struct st_entry *e;
            char *path = NULL;
            if (kind == CKPT_STATES && !n_states)
                break;
            if (!ckpt->headers[i])
                st = use_header(ckpt, i, &path);
            for (int k = kind == CKPT_WEIGHTS ? -1 : 0; k < n_states && st == SHERD_OK; k++)
                if ((st = find_entry(ckpt, i, k, tensor, &tensor->spans[s], m->files[i].name, &e)) !=
                    SHERD_OK)
                    st = status_context(st, "%s", ckpt->path);
            mem_free(path);
            SHERD_TRY(st);
        }
    }
    return SHERD_OK;
}

void sherd_ckpt_info_of(const struct sherd_ckpt *ckpt, struct sherd_ckpt_info *out)
{
    const struct manifest *m = &ckpt->manifest;
    *out = (struct sherd_ckpt_info){
        .version = m->version,
        .world = m->world,
        .stage = m->meta.stage,
        .step = m->meta.step,
        .tokens_seen = m->meta.tokens_seen,
        .samples_seen = m->meta.samples_seen,
        .n_tensors = m->n_tensors,
        .n_files = m->n_files,
        .optimizer = m->meta.optimizer,
        .extra = m->meta.extra,
    };
}

static int check_tensor(const struct sherd_ckpt *ckpt, int i)
{
    if (i < 0 || i >= ckpt->manifest.n_tensors)
        return SHERD_FAIL(SHERD_EINVAL, "%s: there is no tensor %d, only 0 to %d", ckpt->path, i,
            ckpt->manifest.n_tensors - 1);
    return SHERD_OK;
}

int sherd_ckpt_tensor_at(const struct sherd_ckpt *ckpt, int i, struct sherd_ckpt_tensor *out)
{
    SHERD_TRY(check_tensor(ckpt, i));
    const struct manifest_tensor *t = &ckpt->manifest.tensors[i];
    *out = (struct sherd_ckpt_tensor){ .name = t->name,
        .alias = t->alias,
        .type = t->type,
        .dims = t->dims,
        .elems = t->elems,
        .frozen = t->frozen,
        .n_spans = t->n_spans };
    memcpy(out->shape, t->shape, sizeof(out->shape));
    return SHERD_OK;
}

int sherd_ckpt_span_at(const struct sherd_ckpt *ckpt, int tensor, int i, struct sherd_ckpt_span *out)
{
    SHERD_TRY(check_tensor(ckpt, tensor));
    const struct manifest *m = &ckpt->manifest;
    const struct manifest_tensor *t = &m->tensors[tensor];
    if (i < 0 || i >= t->n_spans)
        return SHERD_FAIL(SHERD_EINVAL, "%s: tensor '%s' has no span %d, only 0 to %d", ckpt->path, t->name,
            i, t->n_spans - 1);
    const struct manifest_span *s = &t->spans[i];
    *out = (struct sherd_ckpt_span){ m->files[m->file_of[CKPT_WEIGHTS][s->rank]].name, s->rank, s->first,
        s->elems };
    return SHERD_OK;
}

int ckpt_staging(struct sherd_ckpt *ckpt)
{
    if (!ckpt->staging)
        ckpt->staging = mem_aligned(4096, CKPT_STAGING_BYTES);
    return ckpt->staging ? SHERD_OK : SHERD_ENOMEM;
}

int sherd_ckpt_read(
    struct sherd_ckpt *ckpt, const char *what, int tensor, int64_t first, int64_t n, float *out)
{
    SHERD_TRY(check_tensor(ckpt, tensor));
    const struct manifest_tensor *t = &ckpt->manifest.tensors[tensor];
    int state = manifest_state(&ckpt->manifest, what);
    if (state < 0 && strcmp(what, CKPT_WEIGHT))
        return SHERD_FAIL(SHERD_ENOTFOUND, "%s has no '%s' (its optimizer is %s)", ckpt->path, what,
            ckpt->manifest.meta.optimizer);
    if (state >= 0 && t->frozen)
        return SHERD_FAIL(SHERD_ENOTFOUND, "%s: tensor '%s' was frozen when saved and has no '%s'",
            ckpt->path, t->name, what);
    if (first < 0 || n < 0 || first > t->elems || n > t->elems - first)
        return SHERD_FAIL(SHERD_EINVAL, "%s: tensor '%s' has %lld elements; [%lld, +%lld) is outside",
            ckpt->path, t->name, (long long)t->elems, (long long)first, (long long)n);
    if (state >= 0 || t->type == SHERD_F32)
        return read_raw(ckpt, state, tensor, first, n, out);
    SHERD_TRY(ckpt_staging(ckpt));
    int64_t most = (int64_t)(CKPT_STAGING_BYTES / sherd_dtype_bytes(t->type));
    for (int64_t at = 0; at < n; at += most) {
        int64_t m = MIN(n - at, most);
        SHERD_TRY(read_raw(ckpt, -1, tensor, first + at, m, ckpt->staging));
        st_convert(out + at, SHERD_F32, ckpt->staging, t->type, m, NULL);
    }
    return SHERD_OK;
}

static int verify_file(struct sherd_ckpt *ckpt, int i, struct sum *sum)
{
    const struct manifest_file *f = &ckpt->manifest.files[i];
    char text[SUM_TEXT_BYTES], *path = NULL;
    int st = SHERD_OK;
    SHERD_TRY_OUT(ckpt_use_file(ckpt, i, &path));
    for (uint64_t at = 0; at < f->bytes; at += CKPT_STAGING_BYTES) {
        size_t m = (size_t)MIN(f->bytes - at, CKPT_STAGING_BYTES);
        SHERD_TRY_OUT(file_pread(ckpt->fd, ckpt->staging, m, at, path));
        sum_add(sum, ckpt->staging, m);
    }
    sum_text(sum, text);
    if (strcmp(text, f->sum))
        SHERD_TRY_OUT(SHERD_FAIL(SHERD_ECORRUPT,
            "%s: XXH3-128 is %s, the manifest says %s: the file was changed "
            "after it was saved; use another checkpoint",
            path, text, f->sum));
out:
    mem_free(path);
    return st;
}

int ckpt_verify_files(struct sherd_ckpt *ckpt, unsigned kinds, int first, int stride)
{
    SHERD_TRY(ckpt_staging(ckpt));
    for (int i = first; i < ckpt->manifest.n_files; i += stride) {
        struct sum *sum;
        if (!(kinds >> ckpt->manifest.files[i].kind & 1u))
            continue;
        SHERD_TRY(sum_create(&sum));
        int st = verify_file(ckpt, i, sum);
        sum_destroy(sum);
        SHERD_TRY(st);
    }
    return SHERD_OK;
}

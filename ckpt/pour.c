/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Pouring: see ckpt/pour.h. Pieces are whole multiples of what direct writes need; only the last one ends
 * elsewhere, and the file is cut after it. A block of the checkpoint that two pieces share is read twice.
 */
#include "ckpt/pour.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/file.h"
#include "base/lanes.h"
#include "base/status.h"

struct pour {
    struct sherd_ckpt *ckpt;
    const char *path;
    const struct pour_item *items;
    enum sherd_dtype type;
    char *header;
    size_t header_bytes;
    uint64_t *begin; /* of each item in the file, and the end of the last */
    int n;
    uint64_t bytes; /* of the file */
    int fd, direct;
    atomic_int stop;
    pthread_mutex_t lock; /* of what follows */
    int status;
    char text[1024];
};

#define IN_BYTES (POUR_BYTES + 2 * CKPT_BLOCK_MOST)

/* What one lane works with. */
struct hand {
    struct pour *pour;
    char *out, *in;      /* POUR_BYTES, IN_BYTES */
    int fd, file;        /* the checkpoint's file read last; -1 */
    uint64_t begin, end; /* of it, lies in `in` */
};

/* The first failure is the one that is told; the others stop. */
static void fail(struct pour *p, int st)
{
    pthread_mutex_lock(&p->lock);
    if (p->status == SHERD_OK) {
        p->status = st;
        strncpy(p->text, sherd_error(), sizeof(p->text) - 1);
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->stop, 1);
}

/* ---- reading ---- */

static int use_file(struct hand *h, int file, const char *path)
{
    if (h->file == file)
        return SHERD_OK;
    int fd = h->fd;
    h->fd = h->file = -1;
    h->begin = h->end = 0;
    SHERD_TRY(file_close(fd, path));
    SHERD_TRY(file_open_read(&h->fd, path));
    h->file = file;
    return SHERD_OK;
}

/* Reads and checks the blocks that hold [offset, end) of a file. The last of them may be wanted again. */
static int read_blocks(struct hand *h, int file, uint64_t offset, uint64_t end)
{
    const struct sherd_ckpt *ckpt = h->pour->ckpt;
    int checks = ckpt_checks_reads(ckpt);
    uint64_t block = checks ? ckpt->manifest.block : CKPT_BLOCK_LEAST;
    uint64_t begin = offset / block * block, whole = end / block * block;
    char *path = ckpt_join(ckpt->path, ckpt->manifest.files[file].name);
    if (!path)
        return SHERD_ENOMEM;
    end = MIN((end + block - 1) / block * block, ckpt->manifest.files[file].bytes);
    int st = use_file(h, file, path);
    h->begin = h->end = 0;
    if (st == SHERD_OK)
        st = file_pread(h->fd, h->in, (size_t)(end - begin), begin, path);
    if (st == SHERD_OK && checks)
        st = ckpt_check_blocks(ckpt, file, begin, end, h->in, path);
    if (st == SHERD_OK) {
        h->begin = begin;
        h->end = end;
        if (whole > begin)
            (void)posix_fadvise(h->fd, (off_t)begin, (off_t)(whole - begin), POSIX_FADV_DONTNEED);
    }
    mem_free(path);
    return st;
}

/* Bytes [offset, offset + n) of a file lie at *at; n is at most POUR_BYTES. */
static int fetch(struct hand *h, int file, uint64_t offset, uint64_t n, const char **at)
{
    if (h->file != file || offset < h->begin || offset + n > h->end)
        SHERD_TRY(read_blocks(h, file, offset, offset + n));
    *at = h->in + (offset - h->begin);
    return SHERD_OK;
}

static int pour_elems(struct hand *h, const struct pour_item *item, int64_t first, int64_t n, char *to)
{
    struct pour *p = h->pour;
    const struct manifest_tensor *t = &p->ckpt->manifest.tensors[item->tensor];
    while (n > 0) {
        int file;
        uint64_t offset;
        int64_t m, overflow;
        const char *from;
        SHERD_TRY(ckpt_locate(p->ckpt, -1, item->tensor, first, &file, &offset, &m));
        m = MIN(MIN(m, n), (int64_t)(POUR_BYTES / sherd_dtype_bytes(t->type)));
        int st = fetch(h, file, offset, (uint64_t)m * sherd_dtype_bytes(t->type), &from);
        if (st != SHERD_OK)
            return status_context(st, "tensor '%s'", t->name);
        st_convert(to, p->type, from, t->type, m, &overflow);
        if (overflow >= 0)
            return SHERD_FAIL(SHERD_ENONFINITE,
                "tensor '%s', element %lld is too large for %s: merge to bf16 or f32", t->name,
                (long long)(first + overflow), sherd_dtype_name(p->type));
        to += (size_t)m * sherd_dtype_bytes(p->type);
        first += m;
        n -= m;
    }
    return SHERD_OK;
}

/* ---- writing ---- */

/* The item that holds a byte of the file, which lies behind the header. */
static int item_at(const struct pour *p, uint64_t at)
{
    int low = 0, high = p->n - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (p->begin[mid] <= at)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Bytes [begin, end) of the file to h->out. */
static int fill(struct hand *h, uint64_t begin, uint64_t end)
{
    const struct pour *p = h->pour;
    uint64_t at = begin, size = sherd_dtype_bytes(p->type);
    if (at < p->header_bytes) {
        uint64_t n = MIN(end, p->header_bytes) - at;
        memcpy(h->out, p->header + at, (size_t)n);
        at += n;
    }
    for (int i = at < end ? item_at(p, at) : p->n; at < end; i++) {
        uint64_t n = MIN(end, p->begin[i + 1]) - at;
        SHERD_TRY(pour_elems(h, &p->items[i], (int64_t)((at - p->begin[i]) / size), (int64_t)(n / size),
            h->out + (at - begin)));
        at += n;
    }
    return SHERD_OK;
}

static int write_piece(struct hand *h, uint64_t begin, uint64_t end)
{
    const struct pour *p = h->pour;
    size_t n = (size_t)(end - begin), padded = n;
    SHERD_TRY(fill(h, begin, end));
    if (p->direct) {
        padded = (size_t)round_up((int64_t)n, (int64_t)FILE_DIRECT_ALIGN);
        memset(h->out + n, 0, padded - n);
    }
    return file_pwrite(p->fd, h->out, padded, begin, p->path);
}

static int hand_finish(struct hand *h)
{
    mem_free(h->out);
    mem_free(h->in);
    return file_close(h->fd, h->pour->path);
}

static int hand_init(struct hand *h, struct pour *p)
{
    *h = (struct hand){ .pour = p, .fd = -1, .file = -1 };
    h->out = mem_aligned(FILE_DIRECT_ALIGN, (size_t)POUR_BYTES);
    h->in = h->out ? mem_aligned(FILE_DIRECT_ALIGN, (size_t)IN_BYTES) : NULL;
    if (h->in)
        return SHERD_OK;
    (void)hand_finish(h);
    return SHERD_ENOMEM;
}

static void pour_piece(void *hands, int64_t task, int lane)
{
    struct hand *h = (struct hand *)hands + lane;
    struct pour *p = h->pour;
    uint64_t begin = (uint64_t)task * POUR_BYTES;
    if (atomic_load(&p->stop))
        return;
    int st = write_piece(h, begin, MIN(begin + POUR_BYTES, p->bytes));
    if (st != SHERD_OK)
        fail(p, st);
}

/* Memory for more lanes that is not to be had is done without. */
static int work_together(struct pour *p)
{
    struct hand hands[POUR_THREADS];
    int64_t pieces = (int64_t)((p->bytes + POUR_BYTES - 1) / POUR_BYTES);
    int n = 1;
    SHERD_TRY(hand_init(&hands[0], p));
    while (n < MIN(pieces, POUR_THREADS) && hand_init(&hands[n], p) == SHERD_OK)
        n++;
    lanes_run(n, pieces, pour_piece, hands);
    for (int i = 0; i < n; i++) {
        int st = hand_finish(&hands[i]);
        if (st != SHERD_OK)
            fail(p, st); /* what came before is kept */
    }
    return p->status == SHERD_OK ? SHERD_OK : status_adopt(p->status, p->text);
}

static int write_all(struct pour *p)
{
    SHERD_TRY(file_open_direct(&p->fd, &p->direct, p->path));
    int st = file_reserve(p->fd, p->bytes, p->path);
    if (st == SHERD_OK)
        st = work_together(p);
    if (st == SHERD_OK)
        st = file_cut(p->fd, p->bytes, p->path);
    if (st == SHERD_OK)
        st = file_sync(p->fd, p->path);
    SHERD_KEEP(st, file_close(p->fd, p->path));
    return st;
}

static int make_header(struct pour *p)
{
    const struct st_meta meta = { CKPT_META_FORMAT, CKPT_META_FORMAT_VALUE };
    struct st_item *items = mem_zalloc((size_t)p->n, sizeof(*items));
    p->begin = mem_zalloc((size_t)p->n + 1, sizeof(*p->begin));
    int st = items && p->begin ? SHERD_OK : SHERD_ENOMEM;
    for (int i = 0; i < p->n && st == SHERD_OK; i++) {
        const struct manifest_tensor *t = &p->ckpt->manifest.tensors[p->items[i].tensor];
        items[i] = (struct st_item){ p->items[i].name, p->type, t->dims, t->shape };
        p->begin[i + 1] = p->begin[i] + (uint64_t)t->elems * sherd_dtype_bytes(p->type);
    }
    if (st == SHERD_OK)
        st = st_header_text(&p->header, &p->header_bytes, &p->bytes, items, p->n, &meta, 1);
    for (int i = 0; i <= p->n && st == SHERD_OK; i++)
        p->begin[i] += p->header_bytes;
    mem_free(items);
    return st;
}

int pour_file(struct sherd_ckpt *ckpt, const char *path, const struct pour_item *items, int n,
    enum sherd_dtype type, uint64_t *bytes)
{
    struct pour p = { .ckpt = ckpt, .path = path, .items = items, .n = n, .type = type, .fd = -1 };
    pthread_mutex_init(&p.lock, NULL);
    int st = make_header(&p);
    if (st == SHERD_OK)
        st = write_all(&p);
    *bytes = p.bytes;
    pthread_mutex_destroy(&p.lock);
    mem_free(p.header);
    mem_free(p.begin);
    return st;
}

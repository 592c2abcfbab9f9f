/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading the files of ranks by whole blocks and checking each: see ckpt_fetch in ckpt/open.h.
 */
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "ckpt/parts.h"

/* From this size on reads go past the page cache: the disk works on all of it at once, and nothing is copied.
 */
#define DIRECT_LEAST ((size_t)1 << 20)

int ckpt_check_blocks(
    const struct sherd_ckpt *ckpt, int file, uint64_t begin, uint64_t end, const char *data, const char *path)
{
    const struct manifest_file *f = &ckpt->manifest.files[file];
    uint64_t block = ckpt->manifest.block;
    for (uint64_t at = begin; at < end; at += block) {
        size_t n = (size_t)MIN(block, end - at);
        if (sum_hash64(data + (at - begin), n, 0) != f->blocks[at / block])
            return SHERD_FAIL(SHERD_ECORRUPT,
                "%s: bytes %llu to %llu are not those that were saved (their XXH3-64 differs from the "
                "manifest's): the file was changed after it was saved; use another checkpoint",
                path, (unsigned long long)at, (unsigned long long)(at + n));
    }
    return SHERD_OK;
}

/* Whole blocks are aligned as the disk wants it; the file's end need not be. */
int ckpt_read_blocks(int fd, char *to, uint64_t begin, uint64_t end, const char *path)
{
    size_t bytes = (size_t)(end - begin), aligned = bytes / FILE_DIRECT_ALIGN * FILE_DIRECT_ALIGN;
    if (bytes < DIRECT_LEAST)
        return file_pread(fd, to, bytes, begin, path);
    file_set_direct(fd, 1);
    int st = file_pread(fd, to, aligned, begin, path);
    file_set_direct(fd, 0);
    if (st == SHERD_OK && bytes > aligned)
        st = file_pread(fd, to + aligned, bytes - aligned, begin + aligned, path);
    return st;
}

/* The window from what was read ahead. */
static int take_part(struct sherd_ckpt *ckpt, const struct part *part)
{
    ckpt->window.end = part->end;
    return parts_take(ckpt->window.parts, &ckpt->window.data);
}

static int read_window(struct sherd_ckpt *ckpt, uint64_t end, const char *path)
{
    if (!ckpt->window.own)
        ckpt->window.own = mem_aligned(FILE_DIRECT_ALIGN, CKPT_STAGING_BYTES);
    if (!ckpt->window.own)
        return SHERD_ENOMEM;
    ckpt->window.data = ckpt->window.own;
    ckpt->window.end = end;
    return ckpt_read_blocks(ckpt->fd, ckpt->window.own, ckpt->window.begin, end, path);
}

/* Moves the window to the blocks that hold [offset, end), or the first of them; or to more, read ahead. */
static int move_window(struct sherd_ckpt *ckpt, int file, uint64_t offset, uint64_t end)
{
    uint64_t block = ckpt->manifest.block, begin = offset / block * block;
    const struct part *next = ckpt->window.parts ? parts_next(ckpt->window.parts) : NULL;
    char *path = NULL;
    end = MIN((end + block - 1) / block * block, ckpt->manifest.files[file].bytes);
    end = MIN(end, begin + CKPT_STAGING_BYTES);
    ckpt->window.file = -1;
    ckpt->window.begin = begin;
    int st = ckpt_use_file(ckpt, file, &path);
    if (st == SHERD_OK)
        st = next && next->file == file && next->begin == begin ? take_part(ckpt, next)
                                                                : read_window(ckpt, end, path);
    if (st == SHERD_OK) {
        end = ckpt->window.end;
        ckpt->bytes_read += end - begin;
        st = ckpt_check_blocks(ckpt, file, begin, end, ckpt->window.data, path);
    }
    if (st == SHERD_OK)
        ckpt->window.file = file;
    mem_free(path);
    return st;
}

static int fetch_plain(struct sherd_ckpt *ckpt, int file, uint64_t offset, size_t bytes, void *out)
{
    char *path = NULL;
    int st = ckpt_use_file(ckpt, file, &path);
    if (st == SHERD_OK)
        st = file_pread(ckpt->fd, out, bytes, offset, path);
    if (st == SHERD_OK)
        ckpt->bytes_read += bytes;
    mem_free(path);
    return st;
}

int ckpt_peek(struct sherd_ckpt *ckpt, int file, uint64_t offset, size_t bytes, const void **out, size_t *n)
{
    if (ckpt->window.file != file || offset < ckpt->window.begin || offset >= ckpt->window.end)
        SHERD_TRY(move_window(ckpt, file, offset, offset + bytes));
    *n = MIN(bytes, (size_t)(ckpt->window.end - offset));
    *out = ckpt->window.data + (offset - ckpt->window.begin);
    return SHERD_OK;
}

int ckpt_fetch(struct sherd_ckpt *ckpt, int file, uint64_t offset, size_t bytes, void *out)
{
    char *to = out;
    if (!ckpt_checks_reads(ckpt))
        return fetch_plain(ckpt, file, offset, bytes, out);
    while (bytes) {
        const void *from;
        size_t n;
        SHERD_TRY(ckpt_peek(ckpt, file, offset, bytes, &from, &n));
        memcpy(to, from, n);
        to += n;
        offset += n;
        bytes -= n;
    }
    return SHERD_OK;
}

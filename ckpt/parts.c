/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The thread that reads ahead: see ckpt/parts.h. Part i lies in buffer i modulo their number; the thread is
 * never more than all buffers but the one in use ahead.
 */
#include "ckpt/parts.h"

#include <pthread.h>
#include <stdio.h>

#include "base/file.h"
#include "base/status.h"
#include "base/thread.h"

struct parts {
    const struct sherd_ckpt *ckpt;
    struct sherd_device *dev;
    const struct part *parts;
    int n;
    struct file_watch watch; /* of the caller, told of reads too */
    void *memory;
    char *buffers; /* PARTS_BUFFERS times CKPT_STAGING_BYTES */
    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int read, taken, stop; /* parts that were read; that were taken */
    int status;            /* why no more are read */
    char text[1024];
};

static char *buffer_of(const struct parts *a, int i)
{
    return a->buffers + (size_t)(i % PARTS_BUFFERS) * CKPT_STAGING_BYTES;
}

/* Part i to its buffer; *fd is of the file `*file`, -1 before the first. */
static int read_part(struct parts *a, int i, int *fd, int *file)
{
    const struct part *part = &a->parts[i];
    char *path = ckpt_join(a->ckpt->path, a->ckpt->manifest.files[part->file].name);
    int st = path ? SHERD_OK : SHERD_ENOMEM;
    if (st == SHERD_OK && *file != part->file) {
        int old = *fd;
        *fd = *file = -1;
        st = file_close(old, path);
        if (st == SHERD_OK)
            st = file_open_read(fd, path);
        if (st == SHERD_OK)
            *file = part->file;
    }
    if (st == SHERD_OK)
        st = ckpt_read_blocks(*fd, buffer_of(a, i), part->begin, part->end, path);
    mem_free(path);
    return st;
}

static void *serve(void *arg)
{
    struct parts *a = arg;
    int fd = -1, file = -1;
    file_watch(a->watch);
    pthread_mutex_lock(&a->lock);
    while (!a->stop && a->status == SHERD_OK && a->read < a->n) {
        if (a->read >= a->taken + PARTS_BUFFERS - (a->taken > 0)) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        int st = read_part(a, a->read, &fd, &file);
        pthread_mutex_lock(&a->lock);
        a->read += st == SHERD_OK;
        a->status = st;
        if (st != SHERD_OK)
            snprintf(a->text, sizeof(a->text), "%s", sherd_error());
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    (void)file_close(fd, ""); /* read only: nothing can be lost */
    return NULL;
}

int parts_create(struct parts **out, const struct sherd_ckpt *ckpt, struct sherd_device *dev,
    const struct part *parts, int n)
{
    struct parts *a = mem_zalloc(1, sizeof(*a));
    if (!a)
        return SHERD_ENOMEM;
    a->ckpt = ckpt;
    a->dev = dev;
    a->parts = parts;
    a->n = n;
    a->watch = file_watched();
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    int st = sherd_host_alloc(dev, &a->memory, PARTS_BUFFERS * CKPT_STAGING_BYTES + FILE_DIRECT_ALIGN);
    status_context(st, "host memory to load through");
    a->buffers = (char *)(uintptr_t)round_up((int64_t)(uintptr_t)a->memory, FILE_DIRECT_ALIGN);
    if (st == SHERD_OK) {
        st = thread_start(&a->thread, serve, a, "the thread that loads");
        a->has_thread = st == SHERD_OK;
    }
    if (st != SHERD_OK) {
        parts_destroy(a);
        return st;
    }
    *out = a;
    return SHERD_OK;
}

void parts_destroy(struct parts *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    if (a->memory)
        sherd_host_free(a->dev, a->memory);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    mem_free(a);
}

const struct part *parts_next(const struct parts *a)
{
    return a->taken < a->n ? &a->parts[a->taken] : NULL; /* only the caller changes it */
}

int parts_take(struct parts *a, const char **data)
{
    pthread_mutex_lock(&a->lock);
    int i = a->taken++;
    pthread_cond_broadcast(&a->changed);
    while (a->read <= i && a->status == SHERD_OK)
        pthread_cond_wait(&a->changed, &a->lock);
    int st = a->read > i ? SHERD_OK : status_adopt(a->status, a->text);
    pthread_mutex_unlock(&a->lock);
    *data = buffer_of(a, i);
    return st;
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Slabs of host memory: see ckpt/slab.h.
 */
#include "ckpt/slab.h"

#include "base/mem.h"
#include "base/status.h"
#include "ckpt/format.h"

#define SLABS_LEAST 4

int slabs_init(struct slabs *s, struct sherd_device *dev, uint64_t bytes)
{
    int64_t n = MAX(SLABS_LEAST, (int64_t)((bytes + CKPT_SLAB_BYTES - 1) / CKPT_SLAB_BYTES));
    *s = (struct slabs){ .dev = dev };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->full_end = &s->full;
    s->items = mem_zalloc((size_t)n, sizeof(*s->items));
    if (!s->items)
        return SHERD_ENOMEM;
    s->n = (int)n;
    int st = sherd_host_alloc(dev, &s->memory, (size_t)n * CKPT_SLAB_BYTES + FILE_DIRECT_ALIGN);
    SHERD_TRY(status_context(st, "host memory to save through, %lld slabs", (long long)n));
    char *at = (char *)(uintptr_t)round_up((int64_t)(uintptr_t)s->memory, FILE_DIRECT_ALIGN);
    for (int i = s->n - 1; i >= 0; i--) {
        s->items[i].data = at + (size_t)i * CKPT_SLAB_BYTES;
        SHERD_TRY(sherd_event_create(&s->items[i].copied, dev));
        s->items[i].next = s->free;
        s->free = &s->items[i];
    }
    return SHERD_OK;
}

void slabs_finish(struct slabs *s)
{
    if (!s->dev)
        return;
    for (int i = 0; i < s->n; i++)
        sherd_event_destroy(s->items[i].copied);
    sherd_host_free(s->dev, s->memory);
    mem_free(s->items);
    pthread_cond_destroy(&s->changed);
    pthread_cond_destroy(&s->more);
    pthread_mutex_destroy(&s->lock);
    *s = (struct slabs){ 0 };
}

struct slab *slabs_take(struct slabs *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->free && !s->broken)
        pthread_cond_wait(&s->changed, &s->lock);
    struct slab *slab = s->free;
    if (slab)
        s->free = slab->next;
    pthread_mutex_unlock(&s->lock);
    return slab;
}

void slabs_hand_over(struct slabs *s, struct slab *slab)
{
    pthread_mutex_lock(&s->lock);
    slab->next = NULL;
    *s->full_end = slab;
    s->full_end = &slab->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

void slabs_give_back(struct slabs *s, struct slab *slab)
{
    pthread_mutex_lock(&s->lock);
    slab->next = s->free;
    s->free = slab;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a GPU's queues and events do, for its table of functions: see struct dev_ops.
 */
#ifndef SHERD_DEVICE_CUDA_QUEUE_H
#define SHERD_DEVICE_CUDA_QUEUE_H

#include "device/ops.h"

int cuda_queue_create(struct sherd_queue *queue);
void cuda_queue_destroy(struct sherd_queue *queue);
int cuda_queue_sync(struct sherd_queue *queue);
int cuda_event_create(struct sherd_event *event);
void cuda_event_destroy(struct sherd_event *event);
int cuda_event_record(struct sherd_event *event, struct sherd_queue *queue);
int cuda_event_wait(struct sherd_queue *queue, struct sherd_event *event);
int cuda_event_sync(struct sherd_event *event);
int cuda_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms);
int cuda_event_stamp(struct sherd_event *event, struct sherd_queue *queue);
int cuda_capture_begin(struct sherd_queue *queue);
int cuda_capture_end(struct sherd_queue *queue, void **graph);
int cuda_graph_launch(struct sherd_queue *queue, void *graph);
void cuda_graph_destroy(struct sherd_device *dev, void *graph);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Names to offsets: where each tensor lies in its unit's flat buffers, and which part of a unit is whose.
 * Pure functions of the model's spec and the world size; needs no device and no memory but its own.
 *
 * A unit has two flat segments, TRAINED and FROZEN. In each, every parameter starts at a multiple of
 * SHARD_ALIGN elements and the end is padded to a multiple of world * SHARD_ALIGN; padding is zero and stays
 * zero. The same offsets hold for weights, gradients, masters and optimizer state. Rank r owns the slice
 * [r, r + 1) * elems / world of each segment. The offsets do not depend on the world; only the padding does.
 */
#ifndef SHERD_SHARD_LAYOUT_H
#define SHERD_SHARD_LAYOUT_H

#include <sherd/model.h>

#define SHARD_ALIGN 128

enum shard_segment { SHARD_TRAINED, SHARD_FROZEN, SHARD_SEGMENTS };

/* One tensor as files know it: a parameter, or one part of a fused parameter. */
struct shard_tensor {
    const char *name, *alias; /* borrowed from the spec; alias may be NULL */
    int unit;
    int param; /* index within the unit */
    enum shard_segment segment;
    int64_t offset; /* elements from the start of the segment */
    int64_t elems;
    int64_t shape[SHERD_MAX_DIMS];
    int dims;
    unsigned flags; /* enum sherd_param_flags */
};

struct shard_unit_layout {
    const char *name;
    int64_t elems[SHARD_SEGMENTS]; /* padded */
    int first_tensor, n_tensors;   /* in offset order within each segment */
    int n_params;
    int64_t *param_offset; /* of each parameter, within its segment */
    enum shard_segment *param_segment;
};

struct shard_layout {
    int world;
    int n_units, n_tensors;
    struct shard_unit_layout *units;
    struct shard_tensor *tensors;
    int64_t params, trained; /* elements without padding */
};

/* Contiguous elements of one tensor within one segment. */
struct shard_span {
    int tensor;
    int64_t first;  /* within the tensor */
    int64_t offset; /* within the segment */
    int64_t elems;
};

int layout_init(struct shard_layout *layout, const struct sherd_model_spec *spec, int world);
void layout_finish(struct shard_layout *layout);

/* Elements of a slice. */
static inline int64_t layout_slice(const struct shard_layout *layout, int unit, enum shard_segment segment)
{
    return layout->units[unit].elems[segment] / layout->world;
}

/* The spans of [begin, end) of a segment, in offset order: writes at most `cap`, returns how many there are.
 */
int layout_spans(const struct shard_layout *layout, int unit, enum shard_segment segment, int64_t begin,
    int64_t end, struct shard_span *out, int cap);

/* Index of a tensor by name or alias; -1 if there is none. */
int layout_find(const struct shard_layout *layout, const char *name);

/* A rank's own slice of one kind of state, for saving and loading: what = "weight" (float master, or the
 * frozen parameter as it is) or the name of an optimizer state. */
struct shard_view {
    const char *what;
    int unit;
    enum shard_segment segment;
    enum sherd_dtype type;
    void *data; /* device memory: elements [first, first + elems) of the segment */
    int64_t first, elems;
    int halves;   /* of type F32, kept as BF16 in data */
    int16_t *low; /* ... and the rest of the floats here, see sherd_split; NULL where there is none */
};

#endif

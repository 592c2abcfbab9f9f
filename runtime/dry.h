/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The layers of a plan, run on operations that do nothing (device/dry.c): a probe sees what they would ask of
 * a device, without memory, hardware or data.
 */
#ifndef SHERD_RUNTIME_DRY_H
#define SHERD_RUNTIME_DRY_H

struct device_probe;
struct plan;

/* DRY_NEW: a backward whose gradients are the first of a step. */
enum dry_work { DRY_FORWARD, DRY_AGAIN, DRY_BACKWARD, DRY_NEW, DRY_WORKS };

struct dry {
    const struct plan *plan;
    struct device_probe *probe;
    void **w, **dw; /* of the unit with the most parameters */
    unsigned char *fresh;
};

/* Both are borrowed. After a failure, too, finish with dry_finish. */
int dry_init(struct dry *dry, const struct plan *plan, struct device_probe *probe);
void dry_finish(struct dry *dry);

/* A failure is the layer's or the probe's. */
int dry_layer(struct dry *dry, int layer, enum dry_work work);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a device and its links do, for a device file (docs/plan.md): measured by all ranks together, written
 * by the first.
 */
#ifndef SHERD_TOOLS_RATES_H
#define SHERD_TOOLS_RATES_H

#include <sherd/sherd.h>

#define RATES_SIZES 64

/* Figures of the collectives as they are measured, for the fit of their link. */
struct rates_link {
    double bytes[3][RATES_SIZES], seconds[3][RATES_SIZES]; /* on the wire */
    int n[3];
};
void rates_link_add(struct rates_link *l, enum sherd_collective kind, double bus_bytes, double seconds);

/* Matrix products, attention and memory of one device. */
int rates_measure(struct sherd_machine *out, struct sherd_device *device);

/* `world`: ranks of one node make the link "node", of several hosts "network". */
int rates_save(const char *path, struct sherd_machine *machine, const struct rates_link *link,
    const struct sherd_world *world);

#endif

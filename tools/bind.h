/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * This process held to its share of the cores near its GPU. For processes of this program alone: what cores
 * another program keeps to is its own matter.
 */
#ifndef SHERD_TOOLS_BIND_H
#define SHERD_TOOLS_BIND_H

#include "tools/cores.h"

/* Holds the calling thread, and those that it starts from now on, to its share (see cores_share); *out says
 * which. `root` is "/sys". EUNSUPPORTED or EFORMAT says why not; then nothing is changed. */
int bind_near(struct cores *out, const char *root, const char *bus);

#endif

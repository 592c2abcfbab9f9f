/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * All of the public interface.
 */
#ifndef SHERD_SHERD_H
#define SHERD_SHERD_H

#include <sherd/base.h>
#include <sherd/ckpt.h>
#include <sherd/comm.h>
#include <sherd/config.h>
#include <sherd/data.h>
#include <sherd/device.h>
#include <sherd/engine.h>
#include <sherd/forecast.h>
#include <sherd/model.h>
#include <sherd/ops.h>

#endif

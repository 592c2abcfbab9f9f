/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The plugin's kind of device and of communicator. C only: .cu files need nothing of it.
 */
#ifndef SHERD_DEVICE_CUDA_KIND_H
#define SHERD_DEVICE_CUDA_KIND_H

#include "device/ops.h"

extern const struct dev_ops dev_cuda;
extern const struct comm_ops comm_nccl; /* comm/nccl.c, in the same plugin */

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Folders of other programs, told by what lies in them: for the message when one stands where a checkpoint of
 * sherd's or a model folder was wanted.
 */
#ifndef SHERD_CKPT_THEIRS_H
#define SHERD_CKPT_THEIRS_H

#define CKPT_THEIRS_BYTES 512

/* "; it is ...: ... makes a model folder of it"; "" for a folder that is none of those known. */
void ckpt_theirs(char out[CKPT_THEIRS_BYTES], const char *dir);

#endif

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a model needs beside its weights to be talked to: the files of its tokenizer and
 * generation_config.json. Nothing here knows what is in them.
 */
#ifndef SHERD_CKPT_COMPANIONS_H
#define SHERD_CKPT_COMPANIONS_H

#define COMPANION_TOKENIZER "tokenizer.json"

/* Copies those that `from` has into the folder `to`, and sets *n to how many that are. Files that are there
 * with the same bytes are left as they are. */
int companions_copy(const char *from, const char *to, int *n);
/* One file of a folder, by its name, in the same way; it must be there. */
int companions_copy_file(const char *from, const char *to, const char *name);
/* 1 if both folders have the file, with the same bytes. */
int companions_same_file(const char *a, const char *b, const char *name);

#endif

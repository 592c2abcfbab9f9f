/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Putting a finished folder in the place of another, so that at every moment the path is the old folder or
 * the new one, whole.
 */
#ifndef SHERD_CKPT_SWAP_H
#define SHERD_CKPT_SWAP_H

/* A name beside the folder for what will replace it; mem_free it. */
int swap_name(char **out, const char *dir);

/* Takes over from `dir` the files that are not in `made` and that `left(name)` does not name, exchanges the
 * two, and removes the old one. EEXISTS if `dir` holds folders: these would have to move. On failure `dir` is
 * what it was, or already the new one. */
int swap_folders(const char *made, const char *dir, int (*left)(const char *name));

/* The same file under a second name, or a copy where that cannot be; its own copy if `copy`. */
int swap_take_file(const char *from, const char *to, int copy);

#endif

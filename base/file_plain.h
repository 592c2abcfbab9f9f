/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The part of files that needs nothing but the system: what stands where a file is wanted. Both the library
 * and the program have it, so that they say the same.
 */
#ifndef SHERD_BASE_FILE_PLAIN_H
#define SHERD_BASE_FILE_PLAIN_H

/* NULL for a file, or where nothing can be looked at; else what it is and the way out, "a pipe; ...". Asked
 * before a path is opened, which waits for whoever is at the other end of a pipe; and what one rank reads
 * from a pipe the others miss. */
const char *file_other(const char *path);

#endif

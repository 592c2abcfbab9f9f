/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What was found fastest by measuring, kept from run to run in a text file: a first line that names the
 * format, then one line a choice, "KEY VALUE" in hex. Keys and values are bytes that only the measuring side
 * reads. Called by device/cuda/matmul.c. Knows nothing of CUDA.
 */
#ifndef SHERD_DEVICE_CHOICES_H
#define SHERD_DEVICE_CHOICES_H

#include <stddef.h>

#define CHOICE_KEY_BYTES 36
#define CHOICE_VALUE_BYTES 64
#define CHOICES_HEADER "sherd choices 3\n"

struct choice {
    unsigned char key[CHOICE_KEY_BYTES];
    unsigned char value[CHOICE_VALUE_BYTES];
};

struct choices {
    struct choice *at;
    int n, cap;
    char *path; /* NULL: kept in memory only */
};

/* Adds what `text` holds. EFORMAT with the line for anything else than the format; `path` is for messages. */
int choices_parse(struct choices *choices, const char *text, size_t bytes, const char *path);
/* Reads folder/name and remembers it for choices_add; makes the folder. No such file is fine, and so is
 * folder NULL. A file of an earlier version, which was chosen from less, is removed and told. What cannot be
 * read or made is told as a warning, and then nothing is kept: a run needs no choices. */
int choices_open(struct choices *choices, const char *folder, const char *name);
void choices_close(struct choices *choices);
/* The value of a key, the first that was added; NULL if there is none. */
const unsigned char *choices_find(const struct choices *choices, const void *key);
/* Remembers a choice, in the file too. Several processes may add to one file. */
int choices_add(struct choices *choices, const void *key, const void *value);

#endif

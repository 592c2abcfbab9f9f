/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What stands where a file is wanted.
 */
#include "base/file_plain.h"

#include <stddef.h>
#include <sys/stat.h>

const char *file_other(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return NULL;
    if (S_ISDIR(info.st_mode))
        return "a folder; name a file";
    if (S_ISFIFO(info.st_mode))
        return "a pipe; write what comes through it to a file, and name that";
    return S_ISSOCK(info.st_mode) ? "a socket; name a file" : "a device; name a file";
}

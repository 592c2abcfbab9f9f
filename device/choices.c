/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The file of measured choices: see device/choices.h.
 */
#include "device/choices.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

#define LINE_BYTES (2 * CHOICE_KEY_BYTES + 1 + 2 * CHOICE_VALUE_BYTES + 1)
#define MAX_FILE_BYTES (1 << 20)

static int keep(struct choices *choices, const void *key, const void *value)
{
    SHERD_TRY(mem_grow(&choices->at, &choices->cap, choices->n + 1, sizeof(*choices->at)));
    memcpy(choices->at[choices->n].key, key, CHOICE_KEY_BYTES);
    memcpy(choices->at[choices->n].value, value, CHOICE_VALUE_BYTES);
    choices->n++;
    return SHERD_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int from_hex(unsigned char *out, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return 0;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return 1;
}

static char *to_hex(char *out, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++, out += 2)
        snprintf(out, 3, "%02x", bytes[i]);
    return out;
}

int choices_parse(struct choices *choices, const char *text, size_t bytes, const char *path)
{
    const size_t header = strlen(CHOICES_HEADER);
    if (bytes < header || memcmp(text, CHOICES_HEADER, header) != 0)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s:1: does not begin with \"%.*s\"; remove the file to measure again", path, (int)header - 1,
            CHOICES_HEADER);
    int line = 2;
    for (size_t at = header; at < bytes; at += LINE_BYTES, line++) {
        struct choice c;
        const char *value = text + at + 2 * CHOICE_KEY_BYTES;
        if (bytes - at < LINE_BYTES || !from_hex(c.key, CHOICE_KEY_BYTES, text + at) || value[0] != ' ' ||
            !from_hex(c.value, CHOICE_VALUE_BYTES, value + 1) || text[at + LINE_BYTES - 1] != '\n')
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s:%d: not a choice (%d hex digits, a space, %d hex digits); remove the file to measure again",
                path, line, 2 * CHOICE_KEY_BYTES, 2 * CHOICE_VALUE_BYTES);
        SHERD_TRY(keep(choices, c.key, c.value));
    }
    return SHERD_OK;
}

/* As mkdir -p. */
static int make_folders(const char *path)
{
    char part[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof(part))
        return -1;
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}

/* Of version 1 or 2. Another process may have removed it by now and begun anew: then that is lost, which
 * costs no more than measuring it again. */
static int remove_older(const char *text, size_t bytes, const char *path)
{
    const size_t version = strlen(CHOICES_HEADER) - 2;
    if (bytes < version + 2 || memcmp(text, CHOICES_HEADER, version) != 0 ||
        (text[version] != '1' && text[version] != '2') || text[version + 1] != '\n' || unlink(path) != 0)
        return 0;
    log_info("%s is of an earlier version of sherd and removed; matrix products are measured again", path);
    return 1;
}

static int read_file(struct choices *choices, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? SHERD_OK : SHERD_FAIL(SHERD_EIO, "%s: %s", path, strerror(errno));
    char *text = mem_zalloc(MAX_FILE_BYTES, 1);
    size_t bytes = 0;
    ssize_t got = 1;
    while (text && bytes < MAX_FILE_BYTES && got > 0) {
        got = read(fd, text + bytes, MAX_FILE_BYTES - bytes);
        bytes += got > 0 ? (size_t)got : 0;
    }
    int st = !text ? SHERD_ENOMEM : SHERD_OK;
    if (text && got < 0)
        st = SHERD_FAIL(SHERD_EIO, "%s: %s", path, strerror(errno));
    else if (text && bytes > 0 && !remove_older(text, bytes, path))
        st = choices_parse(choices, text, bytes, path);
    close(fd);
    mem_free(text);
    return st;
}

int choices_open(struct choices *choices, const char *folder, const char *name)
{
    *choices = (struct choices){ 0 };
    if (!folder)
        return SHERD_OK;
    size_t bytes = strlen(folder) + strlen(name) + 2;
    choices->path = mem_zalloc(bytes, 1);
    if (!choices->path)
        return SHERD_ENOMEM;
    snprintf(choices->path, bytes, "%s/%s", folder, name);
    int st = make_folders(folder) == 0 ? SHERD_OK : SHERD_FAIL(SHERD_EIO, "%s: %s", folder, strerror(errno));
    if (st == SHERD_OK)
        st = read_file(choices, choices->path);
    if (st == SHERD_OK || st == SHERD_ENOMEM)
        return st;
    log_warn("%s; matrix products are measured again and not kept", sherd_error());
    choices_close(choices);
    return SHERD_OK;
}

void choices_close(struct choices *choices)
{
    mem_free(choices->at);
    mem_free(choices->path);
    *choices = (struct choices){ 0 };
}

const unsigned char *choices_find(const struct choices *choices, const void *key)
{
    for (int i = 0; i < choices->n; i++)
        if (memcmp(choices->at[i].key, key, CHOICE_KEY_BYTES) == 0)
            return choices->at[i].value;
    return NULL;
}

/* The header goes in by whoever creates the file; a line is one write, so lines of processes do not mix. */
static void append(const char *path, const char *line)
{
    int made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    int fd = made >= 0 ? made : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    char text[sizeof(CHOICES_HEADER) + LINE_BYTES];
    int n = snprintf(text, sizeof(text), "%s%s", made >= 0 ? CHOICES_HEADER : "", line);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        log_warn("%s: %s; this choice is measured again next time", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

int choices_add(struct choices *choices, const void *key, const void *value)
{
    char line[LINE_BYTES + 1];
    SHERD_TRY(keep(choices, key, value));
    char *at = to_hex(line, key, CHOICE_KEY_BYTES);
    *at++ = ' ';
    at = to_hex(at, value, CHOICE_VALUE_BYTES);
    *at++ = '\n';
    *at = 0;
    if (choices->path)
        append(choices->path, line);
    return SHERD_OK;
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * JSON, a thin layer over jansson: strict reading (duplicates, trailing text and lone surrogates refused)
 * with errors that name file and place, typed getters that name the member. The library has jansson.h from
 * here alone; callers pass `json_t *` around as they like.
 */
#ifndef SHERD_BASE_JSON_H
#define SHERD_BASE_JSON_H

#include <sherd/base.h>
#include <jansson.h>

/* Parses `bytes` bytes; EFORMAT "name:line:column: ...". The root must be an object. json_decref it. */
int json_parse(json_t **out, const char *text, size_t bytes, const char *name);
/* The same for a text that begins with that line of its file. */
int json_parse_line(json_t **out, const char *text, size_t bytes, const char *name, int64_t line);
int json_parse_file(json_t **out, const char *path, size_t max_bytes);

/* Members of an object; EFORMAT "where: member 'key' is missing / must be an integer" ... Borrowed results.
 * Integers must lie in [min, max]. */
int json_get_int(
    const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out);
int json_get_double(const json_t *object, const char *key, const char *where, double *out);
int json_get_text(const json_t *object, const char *key, const char *where, const char **out);
int json_get_array(const json_t *object, const char *key, const char *where, json_t **out);
int json_get_object(const json_t *object, const char *key, const char *where, json_t **out);

/* Compact or indented (2) text of a value, members in the order they were set; mem_free it. */
int json_print(char **out, const json_t *value, int indent);
/* The same indented, for people: of 15 digits where these are all that the numbers need (1e-6 and not
 * 9.9999999999999995e-7). */
int json_print_neat(char **out, const json_t *value);

#endif

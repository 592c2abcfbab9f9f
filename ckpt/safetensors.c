/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Safetensors files: see ckpt/safetensors.h. The layout is
 *   u64 N, little-endian | N bytes of JSON | the tensors' bytes, without holes
 * Errors: EFORMAT for anything that is wrong with a file, EINVAL for wrong items to be written.
 */
#include "ckpt/safetensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

#define META "__metadata__"

static const struct {
    const char *name;
    int bits;
    enum sherd_dtype type;
} types[] = {
    { "U64", 64, SHERD_DTYPE_NONE },
    { "I64", 64, SHERD_I64 },
    { "F64", 64, SHERD_F64 },
    { "C64", 64, SHERD_DTYPE_NONE },
    { "F32", 32, SHERD_F32 },
    { "U32", 32, SHERD_DTYPE_NONE },
    { "I32", 32, SHERD_I32 },
    { "BF16", 16, SHERD_BF16 },
    { "F16", 16, SHERD_F16 },
    { "U16", 16, SHERD_DTYPE_NONE },
    { "I16", 16, SHERD_DTYPE_NONE },
    { "F8_E5M2FNUZ", 8, SHERD_DTYPE_NONE },
    { "F8_E4M3FNUZ", 8, SHERD_DTYPE_NONE },
    { "F8_E8M0", 8, SHERD_DTYPE_NONE },
    { "F8_E4M3", 8, SHERD_DTYPE_NONE },
    { "F8_E5M2", 8, SHERD_DTYPE_NONE },
    { "I8", 8, SHERD_DTYPE_NONE },
    { "U8", 8, SHERD_U8 },
    { "F6_E3M2", 6, SHERD_DTYPE_NONE },
    { "F6_E2M3", 6, SHERD_DTYPE_NONE },
    { "F4", 4, SHERD_DTYPE_NONE },
    { "BOOL", 8, SHERD_DTYPE_NONE },
};

static int find_type(const char *name)
{
    for (int i = 0; i < (int)ARRAY_LEN(types); i++) {
        if (!strcmp(types[i].name, name))
            return i;
    }
    return -1;
}

const char *st_type_name(enum sherd_dtype type)
{
    for (size_t i = 0; type != SHERD_DTYPE_NONE && i < ARRAY_LEN(types); i++) {
        if (types[i].type == type)
            return types[i].name;
    }
    return NULL;
}

enum sherd_dtype st_type_find(const char *name)
{
    int i = find_type(name);
    return i < 0 ? SHERD_DTYPE_NONE : types[i].type;
}

const char *st_shape_text(const int64_t *shape, int dims, char buf[ST_SHAPE_BYTES])
{
    size_t at = (size_t)snprintf(buf, ST_SHAPE_BYTES, "[");
    for (int i = 0; i < dims; i++) {
        char next[24];
        size_t n = (size_t)snprintf(next, sizeof(next), "%s%lld", i ? ", " : "", (long long)shape[i]);
        if (at + n + sizeof(", ...]") > ST_SHAPE_BYTES) {
            at += (size_t)snprintf(buf + at, ST_SHAPE_BYTES - at, ", ...");
            break;
        }
        at += (size_t)snprintf(buf + at, ST_SHAPE_BYTES - at, "%s", next);
    }
    snprintf(buf + at, ST_SHAPE_BYTES - at, "]");
    return buf;
}

static uint64_t get_u64(const void *data)
{
    const uint8_t *b = data;
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | b[i];
    return v;
}

static void put_u64(void *data, uint64_t v)
{
    uint8_t *b = data;
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> 8 * i);
}

static int parse_meta(struct st_header *h, const json_t *object, const char *name)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: " META " must be an object of texts", name);
    h->meta = arena_zalloc(&h->arena, json_object_size(object), sizeof(*h->meta));
    if (!h->meta)
        return SHERD_ENOMEM;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!json_is_string(value))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: " META ": '%s' must be a text", name, key);
        struct st_meta *m = &h->meta[h->n_meta++];
        m->key = arena_strdup(&h->arena, key);
        m->value = arena_strdup(&h->arena, json_string_value(value));
        if (!m->key || !m->value)
            return SHERD_ENOMEM;
    }
    return SHERD_OK;
}

static int parse_shape(struct st_header *h, struct st_entry *e, const json_t *shape, const char *where)
{
    int64_t *dims = arena_zalloc(&h->arena, json_array_size(shape), sizeof(*dims));
    if (!dims)
        return SHERD_ENOMEM;
    e->dims = (int)json_array_size(shape);
    e->shape = dims;
    e->elems = 1;
    for (int i = 0; i < e->dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return SHERD_FAIL(
                SHERD_EFORMAT, "%s: dimension %d of the shape must be an integer, 0 or more", where, i);
        dims[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(e->elems, dims[i], &e->elems))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: the shape has more elements than fit in 64 bits", where);
    }
    return SHERD_OK;
}

/* Offsets stay relative to the first tensor here; place_entries makes them absolute. */
static int parse_entry(struct st_header *h, const char *key, const json_t *object, const char *name)
{
    struct st_entry *e = &h->entries[h->n++];
    const char *type;
    json_t *shape, *offsets;
    char where[512];
    snprintf(where, sizeof(where), "%s: tensor '%s'", name, key);
    if (!json_is_object(object))
        return SHERD_FAIL(SHERD_EFORMAT, "%s must be an object with dtype, shape and data_offsets", where);
    SHERD_TRY(json_get_text(object, "dtype", where, &type));
    SHERD_TRY(json_get_array(object, "shape", where, &shape));
    SHERD_TRY(json_get_array(object, "data_offsets", where, &offsets));
    int t = find_type(type);
    if (t < 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: unknown dtype '%s'", where, type);
    e->type = types[t].type;
    e->type_name = types[t].name;
    e->name = arena_strdup(&h->arena, key);
    if (!e->name)
        return SHERD_ENOMEM;
    SHERD_TRY(parse_shape(h, e, shape, where));
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: data_offsets must be two integers, begin <= end", where);
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    int64_t bits;
    if (__builtin_mul_overflow(e->elems, (int64_t)types[t].bits, &bits))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the shape has more bits than fit in 64 bits", where);
    if (bits % 8)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %lld bits do not make whole bytes", where, (long long)bits);
    if (e->end - e->begin != (uint64_t)bits / 8)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: shape and dtype need %lld bytes, data_offsets hold %llu", where,
            (long long)(bits / 8), (unsigned long long)(e->end - e->begin));
    return SHERD_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct st_entry *const *)a)->name, (*(const struct st_entry *const *)b)->name);
}

/* Order, no holes, no overlap, and exactly up to the end of the file. */
static int place_entries(struct st_header *h, uint64_t file_bytes, const char *name)
{
    uint64_t at = 0;
    qsort(h->entries, (size_t)h->n, sizeof(*h->entries), by_offset);
    h->by_name = arena_zalloc(&h->arena, (size_t)h->n, sizeof(struct st_entry *));
    if (!h->by_name)
        return SHERD_ENOMEM;
    for (int i = 0; i < h->n; i++) {
        struct st_entry *e = &h->entries[i];
        if (e->begin != at)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' begins at byte %llu of the data, expected %llu",
                name, e->name, (unsigned long long)e->begin, (unsigned long long)at);
        at = e->end;
        e->begin += h->bytes;
        e->end += h->bytes;
        h->by_name[i] = e;
    }
    qsort(h->by_name, (size_t)h->n, sizeof(struct st_entry *), by_name);
    if (at != file_bytes - h->bytes)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the header describes %llu bytes, the file has %llu: %s", name,
            (unsigned long long)(h->bytes + at), (unsigned long long)file_bytes,
            at > file_bytes - h->bytes ? "it is cut off" : "something is appended");
    return SHERD_OK;
}

static int parse_header(struct st_header *h, const json_t *root, uint64_t file_bytes, const char *name)
{
    const char *key;
    json_t *value;
    h->entries = arena_zalloc(&h->arena, json_object_size(root), sizeof(*h->entries));
    if (!h->entries)
        return SHERD_ENOMEM;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (!strcmp(key, META))
            SHERD_TRY(parse_meta(h, value, name));
        else
            SHERD_TRY(parse_entry(h, key, value, name));
    }
    return place_entries(h, file_bytes, name);
}

/* Bytes of JSON, from the first eight bytes of a file. */
static int check_length(const void *data, uint64_t file_bytes, const char *name, uint64_t *json_bytes)
{
    if (file_bytes < 8)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %llu bytes are too few for a safetensors file", name,
            (unsigned long long)file_bytes);
    *json_bytes = get_u64(data);
    if (*json_bytes > ST_MAX_HEADER)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: a header of %llu bytes is above the limit of %llu: no safetensors file?", name,
            (unsigned long long)*json_bytes, (unsigned long long)ST_MAX_HEADER);
    if (*json_bytes > file_bytes - 8)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the header has %llu bytes, but the file ends after %llu", name,
            (unsigned long long)*json_bytes, (unsigned long long)file_bytes);
    return SHERD_OK;
}

int st_parse(struct st_header *out, const void *data, size_t bytes, uint64_t file_bytes, const char *name)
{
    uint64_t json_bytes;
    json_t *root = NULL;
    *out = (struct st_header){ 0 };
    assert(bytes <= file_bytes && (bytes >= 8 || file_bytes < 8));
    (void)bytes; /* read by the assertion alone */
    SHERD_TRY(check_length(data, file_bytes, name, &json_bytes));
    assert(bytes >= 8 + json_bytes);
    SHERD_TRY(json_parse(&root, (const char *)data + 8, (size_t)json_bytes, name));
    out->bytes = 8 + json_bytes;
    int st = parse_header(out, root, file_bytes, name);
    json_decref(root);
    if (st != SHERD_OK)
        st_finish(out);
    return st;
}

int st_read(struct st_header *out, int fd, const char *path)
{
    uint64_t file_bytes, json_bytes;
    uint8_t length[8];
    *out = (struct st_header){ 0 };
    SHERD_TRY(file_size(&file_bytes, path));
    if (file_bytes >= sizeof(length))
        SHERD_TRY(file_pread(fd, length, sizeof(length), 0, path));
    SHERD_TRY(check_length(length, file_bytes, path, &json_bytes));
    char *data = mem_aligned(sizeof(void *), 8 + (size_t)json_bytes);
    if (!data)
        return SHERD_ENOMEM;
    int st = file_pread(fd, data, 8 + (size_t)json_bytes, 0, path);
    if (st == SHERD_OK)
        st = st_parse(out, data, 8 + (size_t)json_bytes, file_bytes, path);
    mem_free(data);
    return st;
}

void st_finish(struct st_header *header)
{
    arena_finish(&header->arena);
    *header = (struct st_header){ 0 };
}

const struct st_entry *st_find(const struct st_header *header, const char *name)
{
    struct st_entry key = { .name = name };
    const struct st_entry *k = &key, **found;
    if (!header->n)
        return NULL;
    found = bsearch(&k, header->by_name, (size_t)header->n, sizeof(struct st_entry *), by_name);
    return found ? *found : NULL;
}

const char *st_meta_find(const struct st_header *header, const char *key)
{
    for (int i = 0; i < header->n_meta; i++) {
        if (!strcmp(header->meta[i].key, key))
            return header->meta[i].value;
    }
    return NULL;
}

/* Writing */

static int add_item(json_t *root, const struct st_item *item, uint64_t *at)
{
    uint64_t bytes = sherd_dtype_bytes(item->type);
    json_t *shape = json_array();
    for (int i = 0; i < item->dims; i++) {
        bytes *= (uint64_t)item->shape[i];
        if (json_array_append_new(shape, json_integer(item->shape[i])))
            goto nomem;
    }
    if (!strcmp(item->name, META) || json_object_get(root, item->name)) {
        json_decref(shape);
        return SHERD_FAIL(SHERD_EINVAL, "tensor '%s': the name is %s", item->name,
            strcmp(item->name, META) ? "given twice" : "reserved in safetensors files");
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", st_type_name(item->type), "shape", shape,
        "data_offsets", (json_int_t)*at, (json_int_t)(*at + bytes));
    *at += bytes;
    if (!entry || json_object_set_new(root, item->name, entry))
        return SHERD_FAIL(
            SHERD_EFORMAT, "tensor '%s': no safetensors entry could be made: is the name UTF-8?", item->name);
    return SHERD_OK;
nomem:
    json_decref(shape);
    return MEM_OUT("the header of a safetensors file");
}

static int add_meta(json_t *root, const struct st_meta *meta, int n)
{
    json_t *object = json_object();
    int bad = !object;
    for (int i = 0; i < n && !bad; i++)
        bad = json_object_set_new(object, meta[i].key, json_string(meta[i].value));
    if (bad || json_object_set_new(root, META, object))
        return MEM_OUT("the header of a safetensors file");
    return SHERD_OK;
}

int st_header_text(char **out, size_t *bytes, uint64_t *file_bytes, const struct st_item *items, int n,
    const struct st_meta *meta, int n_meta)
{
    int st = SHERD_OK;
    char *json = NULL;
    uint64_t at = 0;
    json_t *root = json_object();
    if (!root)
        return MEM_OUT("the header of a safetensors file");
    if (n_meta > 0)
        SHERD_TRY_OUT(add_meta(root, meta, n_meta));
    for (int i = 0; i < n; i++)
        SHERD_TRY_OUT(add_item(root, &items[i], &at));
    SHERD_TRY_OUT(json_print(&json, root, 0));
    size_t len = strlen(json), padded = (size_t)round_up((int64_t)len, 8);
    if (padded > ST_MAX_HEADER)
        SHERD_TRY_OUT(
            SHERD_FAIL(SHERD_EUNSUPPORTED, "%d tensors make a header of %zu bytes; the format allows %llu", n,
                padded, (unsigned long long)ST_MAX_HEADER));
    *out = mem_zalloc(8 + padded, 1);
    if (!*out) {
        st = SHERD_ENOMEM;
        goto out;
    }
    put_u64(*out, padded);
    memcpy(*out + 8, json, len);
    memset(*out + 8 + len, ' ', padded - len);
    *bytes = 8 + padded;
    *file_bytes = 8 + padded + at;
out:
    mem_free(json);
    json_decref(root);
    return st;
}

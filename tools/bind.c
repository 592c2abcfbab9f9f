/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What the system says of cores and GPUs, read once.
 */
#include "tools/bind.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/base.h>

#define TEXT_BYTES 4096 /* files of sysfs are no longer than a page */
#define PATH_BYTES 512

/* The texts that a struct cores_host points to. */
struct host {
    struct cores_host view;
    char *online;
    char **locals;   /* by GPU */
    char **siblings; /* by core */
};

/* The file's text, to be freed; NULL where it cannot be read. */
static char *read_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *read_text(const char *format, ...)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, sizeof(path), format, args);
    va_end(args);
    FILE *file = n < (int)sizeof(path) ? fopen(path, "re") : NULL;
    if (!file)
        return NULL;
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    int whole = feof(file) && !ferror(file);
    fclose(file);
    text[bytes] = '\0';
    return whole ? strdup(text) : NULL;
}

/* Of the vendor NVIDIA, and of the classes of displays (0x0300) or of what computes without one (0x0302). */
static int is_gpu(const char *folder, const char *bus)
{
    char *vendor = read_text("%s/%s/vendor", folder, bus), *class = read_text("%s/%s/class", folder, bus);
    int is = vendor && class && strncmp(vendor, "0x10de", 6) == 0 &&
             (strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0);
    free(vendor);
    free(class);
    return is;
}

static int add_gpu(struct host *h, const char *folder, const char *bus)
{
    int n = h->view.n_gpus;
    struct cores_gpu *gpus = realloc(h->view.gpus, ((size_t)n + 1) * sizeof(*gpus));
    h->view.gpus = gpus ? gpus : h->view.gpus;
    char **locals = realloc(h->locals, ((size_t)n + 1) * sizeof(*locals));
    h->locals = locals ? locals : h->locals;
    char *local = gpus && locals ? read_text("%s/%s/local_cpulist", folder, bus) : NULL;
    if (!local)
        return sherd_fail(SHERD_EUNSUPPORTED, "%s/%s/local_cpulist cannot be read", folder, bus);
    locals[n] = local;
    snprintf(gpus[n].bus, sizeof(gpus[n].bus), "%s", bus);
    gpus[n].local = local;
    h->view.n_gpus = n + 1;
    return SHERD_OK;
}

static int read_gpus(struct host *h, const char *root)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof(folder), "%s/bus/pci/devices", root);
    DIR *dir = opendir(folder);
    int st = SHERD_OK;
    if (!dir)
        return sherd_fail(SHERD_EUNSUPPORTED, "%s cannot be read: %s", folder, strerror(errno));
    for (struct dirent *one = readdir(dir); one && st == SHERD_OK; one = readdir(dir))
        if (one->d_name[0] != '.' && strlen(one->d_name) < CORES_BUS && is_gpu(folder, one->d_name))
            st = add_gpu(h, folder, one->d_name);
    closedir(dir);
    return st;
}

static int read_cores(struct host *h, const char *root)
{
    struct cores online;
    h->online = read_text("%s/devices/system/cpu/online", root);
    h->siblings = calloc(CORES_MOST, sizeof(*h->siblings));
    if (!h->online || !h->siblings)
        return sherd_fail(SHERD_EUNSUPPORTED, "%s/devices/system/cpu/online cannot be read", root);
    h->view.online = h->online;
    h->view.siblings = (const char *const *)h->siblings;
    h->view.n_siblings = CORES_MOST;
    int st = cores_parse(&online, h->online, "the cores that are online");
    for (int core = 0; core < CORES_MOST && st == SHERD_OK; core++)
        if (CPU_ISSET_S((size_t)core, sizeof(online), online.set))
            h->siblings[core] =
                read_text("%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, core);
    return st;
}

static void forget(struct host *h)
{
    for (int i = 0; i < h->view.n_gpus; i++)
        free(h->locals[i]);
    for (int core = 0; h->siblings && core < CORES_MOST; core++)
        free(h->siblings[core]);
    free(h->view.gpus);
    free(h->locals);
    free(h->siblings);
    free(h->online);
}

int bind_near(struct cores *out, const char *root, const char *bus)
{
    struct host host = { 0 };
    struct cores may;
    CPU_ZERO_S(sizeof(may), may.set);
    int st = sched_getaffinity(0, sizeof(may), may.set) == 0
                 ? SHERD_OK
                 : sherd_fail(SHERD_EUNSUPPORTED, "its cores cannot be asked for: %s", strerror(errno));
    if (st == SHERD_OK)
        st = read_cores(&host, root);
    if (st == SHERD_OK)
        st = read_gpus(&host, root);
    if (st == SHERD_OK)
        st = cores_share(out, &host.view, &may, bus);
    if (st == SHERD_OK && sched_setaffinity(0, sizeof(*out), out->set) != 0)
        st = sherd_fail(SHERD_EUNSUPPORTED, "the system refuses: %s", strerror(errno));
    forget(&host);
    return st;
}

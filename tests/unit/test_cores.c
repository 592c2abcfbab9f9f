/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Shares in the cores of a host: lists, the policy on hosts of several kinds, and what is read of a system.
 */
#include "tests/check.h"

#include <sherd/device.h>

#include "base/file.h"
#include "base/lanes.h"
#include "tests/folder.h"
#include "tools/bind.h"

/* ---- lists ---- */

static void check_list(const char *text, int count, const char *printed)
{
    struct cores cores;
    char buf[128];
    ASSERT_OK(cores_parse(&cores, text, "a list"));
    assert_int_equal(cores_count(&cores), count);
    assert_string_equal(cores_print(&cores, buf, sizeof(buf)), printed);
}

static void lists_are_read_and_printed(void **state)
{
    (void)state;
    check_list("0-3,8,10-11", 7, "0-3,8,10-11");
    check_list("0-3,8,10-11\n", 7, "0-3,8,10-11");
    check_list("5\n", 1, "5");
    check_list("", 0, "");
    check_list("\n", 0, "");
    check_list("0,1,2,3-3", 4, "0-3");
    check_list("63-64,8191", 3, "63-64,8191");
}

static void absurd_lists_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "a", "-1", "1-", "-", "3-1", "1,", "1,\n", ",1", "1,,2", "0-8192",
        "8192", "99999999999999999999", "0-3,2", "1,1", "2,1", "0 1", " 0", "+1", "0-1:2/4", "0-3\n4", "0x3",
        "0--1", "1-2-3" };
    struct cores cores;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ASSERT_FAILS(
            cores_parse(&cores, bad[i], "the list of a test"), SHERD_EFORMAT, "the list of a test: '");
        ASSERT_CONTAINS(sherd_error(), "is no list of cores such as 0-3,8");
    }
}

static void a_list_without_room_is_cut(void **state)
{
    (void)state;
    struct cores cores;
    char small[12];
    ASSERT_OK(cores_parse(&cores, "100,102,104-107", "a list"));
    assert_string_equal(cores_print(&cores, small, sizeof(small)), "100,102...");
}

/* ---- the policy ---- */

#define GPUS 8

/* A host of a test: its GPUs in the order given, numbered on the bus by place. */
struct fake {
    struct cores_host host;
    struct cores_gpu gpus[GPUS];
    const char *siblings[256];
    char texts[256][16];
};

static void set_gpus(struct fake *f, const char *online, int n, const char *const *local)
{
    *f = (struct fake){ .host = { .online = online, .gpus = f->gpus, .n_gpus = n, .siblings = f->siblings } };
    for (int i = 0; i < n; i++) {
        snprintf(f->gpus[i].bus, sizeof(f->gpus[i].bus), "0000:%02x:00.0", 0x18 + i);
        f->gpus[i].local = local[i];
    }
}

/* Cores i and i + half share their hardware. */
static void set_siblings(struct fake *f, int half)
{
    f->host.n_siblings = 2 * half;
    for (int i = 0; i < 2 * half; i++) {
        snprintf(f->texts[i], sizeof(f->texts[i]), "%d,%d\n", i % half, i % half + half);
        f->siblings[i] = f->texts[i];
    }
}

static void check_share(const struct fake *f, int gpu, const char *want)
{
    struct cores may, out;
    char buf[256];
    ASSERT_OK(cores_parse(&may, f->host.online, "online"));
    ASSERT_OK(cores_share(&out, &f->host, &may, f->gpus[gpu].bus));
    assert_string_equal(cores_print(&out, buf, sizeof(buf)), want);
}

static void check_none(
    const struct fake *f, const char *may_text, const char *bus, int status, const char *why)
{
    struct cores may, out;
    ASSERT_OK(cores_parse(&may, may_text, "may"));
    ASSERT_FAILS(cores_share(&out, &f->host, &may, bus), status, why);
}

/* All cores are near to all GPUs, as where numa_node is -1. */
static void a_machine_without_nodes(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-31\n", 2, (const char *[]){ "0-31\n", "0-31\n" });
    check_share(&f, 0, "0-15");
    check_share(&f, 1, "16-31");
    set_siblings(&f, 16);
    check_share(&f, 0, "0-7,16-23");
    check_share(&f, 1, "8-15,24-31");
}

static void two_nodes_of_four_gpus(void **state)
{
    (void)state;
    static const char *const local[] = { "0-47,96-143\n", "48-95,144-191\n" };
    const char *of[GPUS];
    struct fake f;
    for (int i = 0; i < GPUS; i++)
        of[i] = local[i / 4];
    set_gpus(&f, "0-191\n", GPUS, of);
    set_siblings(&f, 96);
    check_share(&f, 0, "0-11,96-107");
    check_share(&f, 3, "36-47,132-143");
    check_share(&f, 4, "48-59,144-155");
    check_share(&f, 7, "84-95,180-191");
    /* in whatever order the system lists them */
    struct cores_gpu first = f.gpus[0];
    f.gpus[0] = f.gpus[3];
    f.gpus[3] = first;
    check_share(&f, 3, "0-11,96-107");
}

/* Every core has one owner, and shares differ by one of the hardware's cores at most. */
static void shares_are_even_and_apart(void **state)
{
    (void)state;
    const char *of[GPUS];
    char online[16];
    struct fake f;
    for (int gpus = 1; gpus <= GPUS; gpus++)
        for (int half = 2 * gpus; half <= 40; half++) {
            struct cores may, out, all, both;
            int least = 1 << 20, most = 0;
            snprintf(online, sizeof(online), "0-%d", 2 * half - 1);
            for (int i = 0; i < gpus; i++)
                of[i] = online;
            set_gpus(&f, online, gpus, of);
            set_siblings(&f, half);
            ASSERT_OK(cores_parse(&may, online, "online"));
            ASSERT_OK(cores_parse(&all, "", "none"));
            for (int i = 0; i < gpus; i++) {
                ASSERT_OK(cores_share(&out, &f.host, &may, f.gpus[i].bus));
                CPU_AND_S(sizeof(all), both.set, all.set, out.set);
                assert_int_equal(cores_count(&both), 0);
                CPU_OR_S(sizeof(all), all.set, all.set, out.set);
                int n = cores_count(&out);
                least = n < least ? n : least;
                most = n > most ? n : most;
                for (int core = 0; core < half; core++)
                    assert_int_equal(CPU_ISSET_S((size_t)core, sizeof(out), out.set),
                        CPU_ISSET_S((size_t)(core + half), sizeof(out), out.set));
            }
            assert_int_equal(cores_count(&all), 2 * half);
            assert_true(least >= 4 && most - least <= 2);
        }
}

static void gpus_on_one_node_only(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-15", 2, (const char *[]){ "8-15", "8-15" });
    check_share(&f, 0, "8-11");
    check_share(&f, 1, "12-15");
}

static void cores_that_are_off_are_nobodys(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-3,6-7", 1, (const char *[]){ "0-7" });
    set_siblings(&f, 4); /* those of 0 and 1 are off */
    check_share(&f, 0, "0-3,6-7");
}

static void whoever_is_bound_stays_so(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-31", 2, (const char *[]){ "0-31", "0-31" });
    check_none(&f, "0-15", f.gpus[0].bus, SHERD_EUNSUPPORTED, "keeps it to 16 of the 32 cores of the host");
    check_none(&f, "0-15,40", f.gpus[0].bus, SHERD_EUNSUPPORTED, "keeps it to 16 of the 32");
    check_none(&f, "", f.gpus[0].bus, SHERD_EUNSUPPORTED, "keeps it to 0 of the 32");
}

static void too_few_cores(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-5", 3, (const char *[]){ "0-5", "0-5", "0-5" });
    check_share(&f, 2, "4-5");
    set_siblings(&f, 3);
    check_none(&f, "0-5", f.gpus[2].bus, SHERD_EUNSUPPORTED,
        "cores near to GPU 0000:1a:00.0: 3, for 3 GPUs, which is fewer than 2 each");
    set_gpus(&f, "0-5", 1, (const char *[]){ "\n" });
    check_none(&f, "0-5", f.gpus[0].bus, SHERD_EUNSUPPORTED, ": 0, for 1 GPU, which");
}

static void gpus_that_share_a_part(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-15", 2, (const char *[]){ "0-7", "0-15" });
    check_none(
        &f, "0-15", f.gpus[0].bus, SHERD_EUNSUPPORTED, "GPU 0000:19:00.0 is near to some of the cores");
}

static void absurd_hosts_are_refused(void **state)
{
    (void)state;
    struct fake f;
    set_gpus(&f, "0-7", 2, (const char *[]){ "0-7", "all" });
    check_none(&f, "0-7", "0000:99:00.0", SHERD_EUNSUPPORTED, "no GPU at 0000:99:00.0");
    check_none(&f, "0-7", f.gpus[0].bus, SHERD_EFORMAT, "0000:19:00.0: 'all' is no list of cores");
    f.host.n_gpus = 1;
    f.host.online = "0-";
    check_none(&f, "0-7", f.gpus[0].bus, SHERD_EFORMAT, "the cores that are online: '0-'");
    f.host.online = "0-7";
    set_siblings(&f, 4);
    f.siblings[2] = "3,7\n";
    check_none(&f, "0-7", f.gpus[0].bus, SHERD_EFORMAT,
        "the siblings of core 2: '3,7\n' is without the core itself");
    f.siblings[2] = "?";
    check_none(&f, "0-7", f.gpus[0].bus, SHERD_EFORMAT, "the siblings of core 2: '?' is no list");
}

/* ---- a system's files ---- */

static void put(const char *root, const char *folder, const char *file, const char *text)
{
    char path[FOLDER_BYTES + 128];
    snprintf(path, sizeof(path), "%s/%s", root, folder);
    ASSERT_OK(file_mkdirs(path));
    snprintf(path, sizeof(path), "%s/%s/%s", root, folder, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void put_device(
    const char *root, const char *bus, const char *vendor, const char *class, const char *local)
{
    char folder[128];
    snprintf(folder, sizeof(folder), "bus/pci/devices/%s", bus);
    put(root, folder, "vendor", vendor);
    put(root, folder, "class", class);
    if (local)
        put(root, folder, "local_cpulist", local);
}

/* The cores of this process, which are all there are on the system that is told of: they are bound for real.
 */
static void a_process_is_bound(void **state)
{
    (void)state;
    char root[FOLDER_BYTES], all[4096];
    struct cores before, now, out;
    assert_int_equal(sched_getaffinity(0, sizeof(before), before.set), 0);
    assert_int_equal(folder_make(root, "cores"), 0);
    cores_print(&before, all, sizeof(all));
    put(root, "devices/system/cpu", "online", all);
    put_device(root, "0000:1b:00.0", "0x10de\n", "0x030200\n", all);
    put_device(root, "0000:00:02.0", "0x8086\n", "0x030000\n", all);  /* somebody else's */
    put_device(root, "0000:00:1f.0", "0x10de\n", "0x020000\n", NULL); /* no GPU */
    int st = bind_near(&out, root, "0000:1b:00.0");
    if (cores_count(&before) < 2) {
        assert_int_equal(st, SHERD_EUNSUPPORTED);
    } else {
        ASSERT_OK(st);
        assert_int_equal(sched_getaffinity(0, sizeof(now), now.set), 0);
        assert_true(CPU_EQUAL_S(sizeof(now), now.set, out.set));
        assert_int_equal(lanes_cores(), cores_count(&out));
    }
    put_device(root, "0000:1c:00.0", "0x10de\n", "0x030000\n", NULL);
    ASSERT_FAILS(
        bind_near(&out, root, "0000:1b:00.0"), SHERD_EUNSUPPORTED, "1c:00.0/local_cpulist cannot be read");
    assert_int_equal(sched_setaffinity(0, sizeof(before), before.set), 0);
    ASSERT_OK(file_remove_tree(root));
    ASSERT_FAILS(bind_near(&out, root, "0000:1b:00.0"), SHERD_EUNSUPPORTED, "cpu/online cannot be read");
}

static void a_device_tells_its_bus(void **state)
{
    (void)state;
    char bus[CORES_BUS] = "?";
    ASSERT_OK(sherd_device_bus("cpu", bus, sizeof(bus)));
    assert_string_equal(bus, "");
    ASSERT_FAILS(sherd_device_bus("gpu", bus, sizeof(bus)), SHERD_EINVAL, "unknown device 'gpu'");
    ASSERT_FAILS(sherd_device_bus("cpu", bus, 0), SHERD_EINVAL, "there are 0 bytes");
    ASSERT_FAILS(sherd_device_bus(NULL, bus, sizeof(bus)), SHERD_EINVAL, "name or buf is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_and_printed),
        cmocka_unit_test(absurd_lists_are_refused),
        cmocka_unit_test(a_list_without_room_is_cut),
        cmocka_unit_test(a_machine_without_nodes),
        cmocka_unit_test(two_nodes_of_four_gpus),
        cmocka_unit_test(shares_are_even_and_apart),
        cmocka_unit_test(gpus_on_one_node_only),
        cmocka_unit_test(cores_that_are_off_are_nobodys),
        cmocka_unit_test(whoever_is_bound_stays_so),
        cmocka_unit_test(too_few_cores),
        cmocka_unit_test(gpus_that_share_a_part),
        cmocka_unit_test(absurd_hosts_are_refused),
        cmocka_unit_test(a_process_is_bound),
        cmocka_unit_test(a_device_tells_its_bus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

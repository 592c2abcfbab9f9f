/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A plugin and a library that were not built from the same headers do not take each other. Needs the plugin
 * and the libraries it links, but no GPU; skips without.
 */
#include "tests/check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "comm/ops.h"
#include "device/plugin.h"

static plugin_device_fn *get;
static const struct plugin_host ours = PLUGIN_HOST_INIT;

static const char *other_version(void)
{
    return "0.0.0";
}

static void of_this_build(void **state)
{
    (void)state;
    const struct dev_ops *ops = get(&ours);
    assert_non_null(ops);
    assert_string_equal(ops->kind, "cuda");
    assert_int_equal(ops->comm->built, COMM_BUILT);
}

static void of_other_tables(void **state)
{
    (void)state;
    struct plugin_host host = ours;
    for (int i = 0; i < PLUGIN_SIZES; i++) {
        host.sizes[i] += 8;
        assert_null(get(&host));
        host.sizes[i] -= 8;
    }
    host.count++;
    assert_null(get(&host));
}

static void of_another_version(void **state)
{
    (void)state;
    struct plugin_host host = ours;
    host.sherd_version = other_version;
    assert_null(get(&host));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_this_build),
        cmocka_unit_test(of_other_tables),
        cmocka_unit_test(of_another_version),
    };
    void *plugin = dlopen("libsherd-cuda.so", RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, PLUGIN_DEVICE) : NULL;
    if (!symbol) {
        fprintf(stderr, "skipped: no plugin: %s\n", dlerror());
        return 77;
    }
    memcpy(&get, &symbol, sizeof(get));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Log levels, the rank prefix, the sink and the default sink.
 */
#include "tests/check.h"

#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

struct seen {
    int lines;
    enum sherd_log_level level;
    char text[8192];
};

static void keep(void *ctx, enum sherd_log_level level, const char *text)
{
    struct seen *seen = ctx;
    seen->lines++;
    seen->level = level;
    snprintf(seen->text, sizeof(seen->text), "%s", text);
}

static void callback_gets_level_and_text(void **state)
{
    (void)state;
    struct seen seen = { 0 };
    sherd_log_set(keep, &seen, SHERD_LOG_INFO);
    log_warn("%d of %s", 3, "four");
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, SHERD_LOG_WARN);
    assert_string_equal(seen.text, "3 of four");
    log_debug("not wanted");
    assert_int_equal(seen.lines, 1);
    sherd_log_set(keep, &seen, SHERD_LOG_ERROR);
    log_warn("not wanted either");
    assert_int_equal(seen.lines, 1);
    log_error("wanted");
    assert_int_equal(seen.lines, 2);
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
}

static void rank_stands_in_front(void **state)
{
    (void)state;
    struct seen seen = { 0 };
    sherd_log_set(keep, &seen, SHERD_LOG_INFO);
    log_rank(0);
    log_info("step %d", 5);
    assert_string_equal(seen.text, "[rank 0] step 5");
    log_rank(-1);
    log_info("step %d", 6);
    assert_string_equal(seen.text, "step 6");
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
}

static void failures_are_placed_at_debug_level(void **state)
{
    (void)state;
    struct seen seen = { 0 };
    sherd_log_set(keep, &seen, SHERD_LOG_DEBUG);
    SHERD_FAIL(SHERD_EIO, "disk full");
    assert_int_equal(seen.level, SHERD_LOG_DEBUG);
    ASSERT_CONTAINS(seen.text, "test_log.c:");
    ASSERT_CONTAINS(seen.text, "EIO: disk full");
    assert_string_equal(sherd_error(), "disk full");
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
}

static void long_lines_end_in_dots(void **state)
{
    (void)state;
    struct seen seen = { 0 };
    char big[8000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    sherd_log_set(keep, &seen, SHERD_LOG_INFO);
    log_info("%s", big);
    size_t len = strlen(seen.text);
    assert_in_range(len, 4096, sizeof(big) - 2);
    assert_string_equal(seen.text + len - 4, "x...");
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
}

static void default_goes_to_stderr(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int old = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    log_info("plain");
    log_warn("careful");
    log_error("bad");
    log_debug("hidden");
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    char text[256] = { 0 };
    rewind(file);
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_true(n > 0);
    assert_string_equal(text, "plain\nwarning: careful\nerror: bad\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callback_gets_level_and_text),
        cmocka_unit_test(rank_stands_in_front),
        cmocka_unit_test(failures_are_placed_at_debug_level),
        cmocka_unit_test(long_lines_end_in_dots),
        cmocka_unit_test(default_goes_to_stderr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

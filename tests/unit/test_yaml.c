/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * YAML: what is taken becomes a tree with the right lines, what is not is refused by name, line and reason.
 */
#include "tests/check.h"

#include <stdlib.h>

#include "base/text.h"
#include "runtime/yaml.h"

static int read_text(struct yaml_tree *tree, const char *text)
{
    return yaml_tree_read(tree, text, strlen(text), "t.yaml");
}

/* The tree as one line: {a@1: [x, 'y'], ...}, with lines of members. */
static void show(const struct yaml_node *n, struct text *out)
{
    if (n->kind == YAML_VALUE) {
        text_add(out, n->quoted ? "'%s'" : "%s", n->value);
        return;
    }
    text_add(out, n->kind == YAML_MAP ? "{" : "[");
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        if (c->key)
            text_add(out, "%s@%d: ", c->key, c->line);
        show(c, out);
        text_add(out, c->next ? ", " : "");
    }
    text_add(out, n->kind == YAML_MAP ? "}" : "]");
}

static void expect(const char *text, const char *shown)
{
    struct yaml_tree tree;
    struct text t = { 0 };
    char *s;
    ASSERT_OK(read_text(&tree, text));
    show(tree.root, &t);
    ASSERT_OK(text_take(&t, &s));
    assert_string_equal(s, shown);
    mem_free(s);
    yaml_tree_finish(&tree);
    yaml_tree_finish(&tree); /* twice is fine */
}

static void takes_maps_lists_and_values(void **state)
{
    (void)state;
    expect("a: 1\n", "{a@1: 1}");
    expect("# note\n\na:\n  b: x y\n  c: 'q'\nd: [1, \"2\", z]\n",
        "{a@3: {b@4: x y, c@5: 'q'}, d@6: [1, '2', z]}");
    expect("a:\n- x\n- y\nb: {c: 1, d: []}\n", "{a@1: [x, y], b@4: {c@4: 1, d@4: []}}");
    expect("a: |\n  two\n  lines\nb: 2\n", "{a@1: 'two\nlines\n', b@4: 2}");
    expect("--- {a: 1}\n...\n", "{a@1: 1}");
    expect("[a, b]", "[a, b]");
    expect("plain", "plain");
    expect("\xef\xbb\xbf"
           "a: \xc3\xa4\r\nb: 1\r\n",
        "{a@1: \xc3\xa4, b@2: 1}");
    expect("{\"a\": [\"x\", 1], \"b\": true}", "{a@1: ['x', 1], b@1: true}");
    expect("a: [[1], {b: 2}]\n", "{a@1: [[1], {b@1: 2}]}");
}

static void nothing_is_an_empty_map(void **state)
{
    (void)state;
    expect("", "{}");
    expect("\n\n", "{}");
    expect("# only a comment\n", "{}");
    expect("---\n", "{}");
    expect("~", "{}");
    expect("a:\nb: ~\n", "{a@1: , b@2: ~}");
}

static void refuses(const char *text, const char *message)
{
    struct yaml_tree tree;
    ASSERT_FAILS(read_text(&tree, text), SHERD_ECONFIG, message);
    assert_null(tree.root);
    assert_null(tree.arena.head);
}

static void refuses_what_settings_do_not_need(void **state)
{
    (void)state;
    refuses("a: 1\nb: 2\na: 3\n", "t.yaml:3: a: given twice, first in line 1; remove one");
    refuses("a:\n  b: 1\n  'b': 2\n", "t.yaml:3: b: given twice, first in line 2");
    refuses("a: &x 1\n", "t.yaml:1: anchor '&x': anchors are not taken");
    refuses("a:\n  - &x 1\n", "t.yaml:2: anchor '&x'");
    refuses("a: 1\nb: *x\n", "t.yaml:2: alias '*x': aliases are not taken");
    refuses("a: &x [1]\n", "anchor '&x'");
    refuses("a: &x {b: 1}\n", "anchor '&x'");
    refuses("&x a: 1\n", "anchor '&x'");
    refuses("a: !!int 1\n", "t.yaml:1: tag 'tag:yaml.org,2002:int': tags are not taken");
    refuses("a: !mine [1]\n", "tag '!mine'");
    refuses("a: !mine {b: 1}\n", "tag '!mine'");
    refuses("a: 1\n---\nb: 2\n", "t.yaml:2: a second document begins");
    refuses("a: 1\n? [b]\n: 2\n", "t.yaml:2: a key must be a plain word");
    refuses("a: \"x\\0y\"\n", "t.yaml:1: a value with a zero byte in it");
    refuses("\"x\\0y\": 1\n", "t.yaml:1: a value with a zero byte in it");
}

static void refuses_what_is_no_yaml(void **state)
{
    (void)state;
    refuses("a:\n\tb: 1\n", "t.yaml:2: a tab in the indentation");
    refuses("a:\n  b: 1\n \tc: 2\n", "t.yaml:3: a tab in the indentation");
    refuses("a: b: c\n", "t.yaml:1: not valid YAML: mapping values are not allowed");
    refuses("a: [1, 2\nb: 3\n", "t.yaml:2: not valid YAML");
    refuses("a: 'x\n", "not valid YAML");
    refuses("a: [*.x*]\n", "t.yaml:1: not valid YAML: what begins with * stands in quotes");
    refuses("a: 1\n  b: 2\n", "t.yaml:2: not valid YAML");
    refuses("a: 1\nb: \xff\n", "t.yaml:2: not a text in UTF-8");
    refuses("a: 1\n\x01\n", "t.yaml:2: not a text in UTF-8");
}

static void limits(void **state)
{
    (void)state;
    struct text t = { 0 };
    struct yaml_tree tree;
    char *s;
    for (int i = 0; i < YAML_TEXT_DEPTH; i++)
        text_add(&t, "{a: ");
    text_add(&t, "1");
    for (int i = 0; i < YAML_TEXT_DEPTH; i++)
        text_add(&t, "}");
    ASSERT_OK(text_take(&t, &s));
    ASSERT_OK(read_text(&tree, s));
    yaml_tree_finish(&tree);
    text_add(&t, "{b: %s}", s);
    mem_free(s);
    ASSERT_OK(text_take(&t, &s));
    refuses(s, "t.yaml:1: nested deeper than 8 levels");
    mem_free(s);

    size_t n = YAML_TEXT_BYTES + 1;
    s = mem_zalloc(n + 1, 1);
    assert_non_null(s);
    memset(s, '\n', n);
    ASSERT_OK(yaml_tree_read(&tree, s, n - 1, "t.yaml"));
    yaml_tree_finish(&tree);
    ASSERT_FAILS(yaml_tree_read(&tree, s, n, "t.yaml"), SHERD_ECONFIG, "t.yaml: 262145 bytes are too many");
    mem_free(s);
}

static void null_is_told_from_text(void **state)
{
    (void)state;
    struct yaml_tree tree;
    ASSERT_OK(read_text(&tree, "- ~\n- null\n-\n- '~'\n- 'null'\n- ''\n- 0\n- nulls\n"));
    const int is[] = { 1, 1, 1, 0, 0, 0, 0, 0 };
    int i = 0;
    for (const struct yaml_node *n = tree.root->first; n; n = n->next, i++)
        assert_int_equal(yaml_is_null(n), is[i]);
    assert_int_equal(i, 8);
    assert_false(yaml_is_null(tree.root));
    yaml_tree_finish(&tree);
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    struct yaml_tree tree;
    int st = SHERD_ENOMEM;
    for (int k = 1; st != SHERD_OK; k++) {
        mem_fail_at(k);
        st = read_text(&tree, "a: [1, 2]\nb: {c: x}\n");
        mem_fail_at(0);
        assert_true(st == SHERD_OK || st == SHERD_ENOMEM);
        assert_true(k < 100);
    }
    yaml_tree_finish(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_maps_lists_and_values),
        cmocka_unit_test(nothing_is_an_empty_map),
        cmocka_unit_test(refuses_what_settings_do_not_need),
        cmocka_unit_test(refuses_what_is_no_yaml),
        cmocka_unit_test(limits),
        cmocka_unit_test(null_is_told_from_text),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

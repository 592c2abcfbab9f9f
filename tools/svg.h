/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Charts as SVG: panels below one another, each with axes, ticks and lines. Knows nothing of runs.
 */
#ifndef SHERD_TOOLS_SVG_H
#define SHERD_TOOLS_SVG_H

#include <stdio.h>

#define SVG_LINES 24 /* of one panel, at most */

enum svg_style {
    SVG_FAINT, /* every point, pale and thin */
    SVG_BOLD,
    SVG_DOTS, /* points on a dashed line */
};

/* Points in order of x; what is not finite leaves a gap. */
struct svg_line {
    const double *x, *y;
    int n;
    enum svg_style style;
    int colour;        /* from 0; lines of one thing share it */
    const char *label; /* in the legend; NULL = not there */
};

struct svg_panel {
    const char *title, *x_title;
    struct svg_line lines[SVG_LINES];
    int n;
    int from_zero; /* the y axis begins at 0 */
};

void svg_write(FILE *out, const char *title, const struct svg_panel *panels, int n);

#endif

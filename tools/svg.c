/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Charts: see tools/svg.h. A long line keeps the lowest and highest point of every column of pixels, so that
 * spikes stay and files stay small.
 */
#include "tools/svg.h"

#include <math.h>

#define WIDTH 960
#define PANEL 340 /* height of one, with its titles */
#define LEFT 80
#define RIGHT 20
#define TOP 50
#define BOTTOM 50
#define TICKS 6

/* Told apart also by those who see few colours. */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00",
    "#000000", "#7f7f7f" };

/* Where values lie on the page. */
struct frame {
    double x0, x1, y0, y1;           /* values at the ends of the axes */
    double left, right, top, bottom; /* in pixels */
};

static double at_x(const struct frame *f, double x)
{
    return f->left + (x - f->x0) / (f->x1 - f->x0) * (f->right - f->left);
}

static double at_y(const struct frame *f, double y)
{
    return f->bottom - (y - f->y0) / (f->y1 - f->y0) * (f->bottom - f->top);
}

static void escape(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<' || *s == '>' || *s == '&')
            fprintf(out, "&#%d;", *s);
        else
            fputc((unsigned char)*s < 0x20 ? ' ' : *s, out);
    }
}

/* 1, 2 or 5 times a power of ten, so that about TICKS of them make the span. */
static double tick_step(double span)
{
    double raw = span / TICKS, base = pow(10, floor(log10(raw))), m = raw / base;
    return base * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static void tick_label(FILE *out, double v, double step)
{
    double a = fabs(v);
    if (a >= 1e9)
        fprintf(out, "%gG", v / 1e9);
    else if (a >= 1e6)
        fprintf(out, "%gM", v / 1e6);
    else if (a >= 1e4)
        fprintf(out, "%gk", v / 1e3);
    else
        fprintf(out, "%.*f", step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9), a < step / 2 ? 0.0 : v);
}

static void grow(double v, double *low, double *high)
{
    if (!isfinite(v))
        return;
    *low = v < *low ? v : *low;
    *high = v > *high ? v : *high;
}

/* A span that is not empty, whatever the values. */
static void widen(double *low, double *high)
{
    if (!(*low <= *high)) {
        *low = 0;
        *high = 1;
    }
    if (*high - *low < 1e-9 * fmax(1, fabs(*high))) {
        double by = fmax(0.5, 0.05 * fabs(*high));
        *low -= by;
        *high += by;
    }
}

static void fit(const struct svg_panel *p, struct frame *f)
{
    f->x0 = f->y0 = INFINITY;
    f->x1 = f->y1 = -INFINITY;
    for (int l = 0; l < p->n; l++)
        for (int i = 0; i < p->lines[l].n; i++) {
            grow(p->lines[l].x[i], &f->x0, &f->x1);
            grow(p->lines[l].y[i], &f->y0, &f->y1);
        }
    if (p->from_zero && f->y0 > 0)
        f->y0 = 0;
    widen(&f->x0, &f->x1);
    widen(&f->y0, &f->y1);
    double room = 0.04 * (f->y1 - f->y0);
    f->y1 += room;
    if (!p->from_zero)
        f->y0 -= room;
}

static void axes(FILE *out, const struct svg_panel *p, const struct frame *f)
{
    double xs = tick_step(f->x1 - f->x0), ys = tick_step(f->y1 - f->y0);
    fprintf(out, "<text x=\"%g\" y=\"%g\" font-weight=\"bold\">", f->left, f->top - 12);
    escape(out, p->title);
    fprintf(out, "</text>\n<g stroke=\"#ddd\">\n");
    for (double y = ceil(f->y0 / ys) * ys; y <= f->y1; y += ys)
        fprintf(out, "<path d=\"M%g %.1fH%g\"/>\n", f->left, at_y(f, y), f->right);
    for (double x = ceil(f->x0 / xs) * xs; x <= f->x1; x += xs)
        fprintf(out, "<path d=\"M%.1f %gV%g\"/>\n", at_x(f, x), f->top, f->bottom);
    fprintf(out, "</g>\n<g fill=\"#444\" font-size=\"12\">\n");
    for (double y = ceil(f->y0 / ys) * ys; y <= f->y1; y += ys) {
        fprintf(out, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">", f->left - 6, at_y(f, y) + 4);
        tick_label(out, y, ys);
        fprintf(out, "</text>\n");
    }
    for (double x = ceil(f->x0 / xs) * xs; x <= f->x1; x += xs) {
        fprintf(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">", at_x(f, x), f->bottom + 16);
        tick_label(out, x, xs);
        fprintf(out, "</text>\n");
    }
    fprintf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", (f->left + f->right) / 2, f->bottom + 34);
    escape(out, p->x_title);
    fprintf(out, "</text>\n</g>\n");
}

static void point(FILE *out, const struct frame *f, double x, double y, int *pen)
{
    fprintf(out, "%c%.1f %.1f", *pen ? 'L' : 'M', at_x(f, x), at_y(f, y));
    *pen = 1;
}

/* The points of one column of pixels: the lowest and the highest, in their order. */
static int column(FILE *out, const struct frame *f, const struct svg_line *l, int i, int *pen)
{
    int low = i, high = i, end = i, at = (int)at_x(f, l->x[i]);
    for (; end < l->n && isfinite(l->y[end]) && (int)at_x(f, l->x[end]) == at; end++) {
        low = l->y[end] < l->y[low] ? end : low;
        high = l->y[end] > l->y[high] ? end : high;
    }
    int first = low < high ? low : high, second = low < high ? high : low;
    point(out, f, l->x[first], l->y[first], pen);
    if (second != first)
        point(out, f, l->x[second], l->y[second], pen);
    return end;
}

static void line(FILE *out, const struct frame *f, const struct svg_line *l)
{
    static const char *const looks[] = { "stroke-width=\"1\" opacity=\"0.3\"", "stroke-width=\"2\"",
        "stroke-width=\"1.5\" stroke-dasharray=\"5 3\"" };
    const char *colour = colours[l->colour % (int)(sizeof(colours) / sizeof(colours[0]))];
    int pen = 0;
    fprintf(out, "<path fill=\"none\" stroke=\"%s\" %s d=\"", colour, looks[l->style]);
    for (int i = 0; i < l->n;) {
        if (isfinite(l->y[i])) {
            i = column(out, f, l, i, &pen);
        } else {
            pen = 0;
            i++;
        }
    }
    fprintf(out, "\"/>\n");
    for (int i = 0; i < l->n && l->style == SVG_DOTS; i++)
        if (isfinite(l->y[i]))
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", at_x(f, l->x[i]),
                at_y(f, l->y[i]), colour);
}

static void legend(FILE *out, const struct svg_panel *p, const struct frame *f)
{
    double y = f->top + 14;
    for (int i = 0; i < p->n; i++) {
        const struct svg_line *l = &p->lines[i];
        if (!l->label)
            continue;
        fprintf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"%s\" font-size=\"12\">",
            f->right - 8, y, colours[l->colour % (int)(sizeof(colours) / sizeof(colours[0]))]);
        escape(out, l->label);
        fprintf(out, "</text>\n");
        y += 16;
    }
}

void svg_write(FILE *out, const char *title, const struct svg_panel *panels, int n)
{
    int height = TOP + n * PANEL;
    fprintf(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"14\">\n<title>",
        WIDTH, height, WIDTH, height);
    escape(out, title);
    fprintf(out,
        "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"28\" "
        "font-size=\"18\">",
        LEFT);
    escape(out, title);
    fprintf(out, "</text>\n");
    for (int i = 0; i < n; i++) {
        struct frame f = { .left = LEFT, .right = WIDTH - RIGHT, .top = TOP + i * PANEL + 24 };
        f.bottom = TOP + (i + 1) * PANEL - BOTTOM;
        fit(&panels[i], &f);
        axes(out, &panels[i], &f);
        for (int l = 0; l < panels[i].n; l++)
            line(out, &f, &panels[i].lines[l]);
        legend(out, &panels[i], &f);
    }
    fprintf(out, "</svg>\n");
}

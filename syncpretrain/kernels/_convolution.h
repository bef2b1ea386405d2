/* Convolutions with pooling, without the interpreter's lock; kernels/convolution.py has the equations.
 *
 * Every sum over a window or over filters runs in one order. Included by _native.c alone.
 */
#include "_rounded_windows.h"
#include "_products.h"
#include "_patches.h"

/* ----------------------------------------------------------------------------------- the equations */

static int has_places(const Shape *s, const Matrix *places)
{
    return s->is_max && s->pool > 1 && !is_empty(places);
}

static void convolve_gradient_all(const Shape *s, const Matrix *m, Part part)
{
    if (has_places(s, m + 2))
        gradient_of_largest(s, m, part);
    else
        gradient_of_means(s, m, part);
}

static void convolve_back_all(const Shape *s, const Matrix *m, Part part)
{
    if (has_places(s, m + 1))
        back_of_largest(s, m, part);
    else
        back_of_means(s, m, part);
}

static void visible_means_all(const Shape *s, const Matrix *m, Units units)
{
    const Matrix *x = m, *bias = m + 1;
    Py_ssize_t positions = s->height * s->width, channels = s->every;
    int apart = s->channels_first || channels == 1; /* each channel for itself */
    Tile t;
    tile(&t, bias->data, channels, !apart);
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        for (Py_ssize_t i = 0; i < positions && !apart; i += t.rows) {
            Py_ssize_t rows = positions - i < t.rows ? positions - i : t.rows;
            means_row(row(x, e) + i * channels, t.bias, rows * channels, units);
        }
        for (Py_ssize_t c = 0; c < channels && apart; c++) {
            for (Py_ssize_t i = 0; i < TILED && i < positions; i++) t.copies[i] = bias->data[c];
            for (Py_ssize_t i = 0; i < positions; i += TILED)
                means_row(row(x, e) + c * positions + i, t.copies,
                          positions - i < TILED ? positions - i : TILED, units);
        }
    }
}

static void sum_channels_all(const Shape *s, const Matrix *x, float *out)
{
    Py_ssize_t positions = s->height * s->width, channels = s->every;
    int apart = s->channels_first || channels == 1;
    memset(out, 0, (size_t)channels * sizeof *out);
    for (Py_ssize_t e = 0; e < x->rows; e++) {
        for (Py_ssize_t i = 0; i < positions && !apart; i++)
            add_row(row(x, e) + i * channels, out, channels);
        for (Py_ssize_t c = 0; c < channels && apart; c++)
            out[c] += sum_of_row(row(x, e) + c * positions, positions);
    }
}

/* -------------------------------------------------------------------------- what they are given */

/* The equations in the order of their kinds in _program.h. */
typedef enum { FORWARD, GRADIENT, BACK, VISIBLE, SUMS } Equation;

static Py_ssize_t largest_of(Py_ssize_t a, Py_ssize_t b)
{
    return a > b ? a : b;
}

/* Return the shape with another group at work. */
static Shape group_of(const Shape *s, Py_ssize_t group)
{
    Shape one = *s;
    one.channels = s->every / s->groups;
    one.channel = group * one.channels;
    one.own.count = s->filters / s->groups;
    one.own.first = group * one.own.count;
    return one;
}

static Part common(Part a, Part b)
{
    Py_ssize_t first = largest_of(a.first, b.first);
    Py_ssize_t end = a.first + a.count < b.first + b.count ? a.first + a.count : b.first + b.count;
    return (Part){first, largest_of(end - first, 0)};
}

static int take_shape(Shape *s, const double *numbers)
{
    Py_ssize_t *fields[SHAPE_NUMBERS] = {&s->every, &s->height, &s->width,  &s->filters,       &s->size,
                                         &s->pad,   &s->pool,   &s->is_max, &s->channels_first, &s->groups,
                                         &s->rounds};
    for (int i = 0; i < SHAPE_NUMBERS; i++) {
        double least = i < 5 || i == 6 || i == 9; /* pad, and what is yes or no, may be 0 */
        if (!(numbers[i] >= least && numbers[i] < 1 << 24)) return 0;
        *fields[i] = (Py_ssize_t)numbers[i];
    }
    Py_ssize_t rows = s->height + 2 * s->pad - s->size + 1, columns = s->width + 2 * s->pad - s->size + 1;
    if (rows < 1 || columns < 1 || rows % s->pool || columns % s->pool) return 0;
    if (s->every % s->groups || s->filters % s->groups) return 0;
    *s = group_of(s, 0);
    double size = (double)(s->size + s->pool - 1), fan = size * size * (double)s->channels;
    double image = (double)(s->height + 2 * s->pad) * (double)(s->width + 2 * s->pad);
    /* so no product of sizes overflows, nor an index of a list */
    return image * (double)s->filters < 1 << 30 && image * (double)s->every < 1 << 30 && fan * (double)(s->filters + VEC) < 1LL << 40
           && image * (fan + (double)(s->filters + VEC)) < 1LL << 40;
}

/* Return how many floats the scratch needs, whatever part is computed. */
static Py_ssize_t scratch_of(const Shape *s)
{
    Forward f;
    Means b;
    Patches p;
    Py_ssize_t needed = open_forward(&f, s, s->filters, NULL);
    needed = largest_of(needed, open_gradient(&b, s, s->filters, NULL));
    needed = largest_of(needed, open_back(&b, s, s->channels, NULL)); /* any group as much */
    if (!s->is_max || s->pool == 1) return needed;
    needed = largest_of(needed, open_patches(&p, s, s->channels, s->filters, 0, NULL));
    return largest_of(needed, open_patches(&p, s, s->channels, s->filters, 1, NULL));
}

static int is_of(const Matrix *m, Py_ssize_t rows, double columns)
{
    return m->buffer.ndim == 2 && m->rows == rows && (double)m->columns == columns;
}

static int is_line_of(const Matrix *m, Py_ssize_t length)
{
    return m->buffer.ndim == 1 && m->columns == length;
}

static int take_part(Part *part, const double *numbers, Py_ssize_t all)
{
    if (!(numbers[0] >= 0 && numbers[0] <= numbers[1] && numbers[1] <= (double)all)) return 0;
    part->first = (Py_ssize_t)numbers[0];
    part->count = (Py_ssize_t)numbers[1] - part->first;
    return 1;
}

/* Take the part that an equation computes, of no filters or channels where it has none; `numbers` follow the
 * numbers of the shape. */
static int take_rest(Equation equation, const Shape *s, const double *numbers, Part *part)
{
    int has_units = equation == FORWARD || equation == VISIBLE;
    *part = (Part){0, 0};
    if (has_units && !(numbers[0] >= 0 && numbers[0] < OTHER)) return 0;
    if (equation == VISIBLE || equation == SUMS) return 1;
    return take_part(part, numbers + has_units, equation == BACK ? s->every : s->filters);
}

/* Return whether an equation's matrices, and the numbers behind its shape's, fit the shape. */
static int fits(Equation equation, const Shape *s, const Matrix *m, const double *numbers)
{
    Part part;
    if (!take_rest(equation, s, numbers, &part)) return 0;
    Py_ssize_t n = m[0].rows;
    double visible = (double)(s->height * s->width) * (double)s->every;
    double rows = (double)(s->height + 2 * s->pad - s->size + 1) / (double)s->pool;
    double columns = (double)(s->width + 2 * s->pad - s->size + 1) / (double)s->pool;
    double hidden = rows * columns * (double)s->filters;
    Py_ssize_t fan = s->size * s->size * s->channels;
    const Matrix *weight = m + (equation == FORWARD ? 1 : equation == GRADIENT ? 3 : 2);
    const Matrix *places = m + (equation == FORWARD ? 4 : equation == GRADIENT ? 2 : 1);
    const Matrix *scratch = m + (equation == FORWARD ? 5 : 4);
    if (!is_of(&m[0], n, equation == BACK ? hidden : visible)) return 0;
    if (equation == VISIBLE || equation == SUMS) return is_line_of(&m[1], s->every);
    if (equation == FORWARD && !(is_line_of(&m[2], s->filters) && is_of(&m[3], n, hidden))) return 0;
    if (equation == GRADIENT && !is_of(&m[1], n, hidden)) return 0;
    if (equation == BACK && !is_of(&m[3], n, visible)) return 0;
    return is_of(weight, fan, (double)s->filters)
           && (is_empty(places) || is_of(places, n, hidden))
           && scratch->buffer.ndim == 1 && scratch->columns >= scratch_of(s);
}

/* Work an equation. `numbers` follow the numbers of the shape. */
static void work_equation(Equation equation, const Shape *s, const Matrix *m, const double *numbers)
{
    Part part;
    take_rest(equation, s, numbers, &part);
    if (equation == VISIBLE) visible_means_all(s, m, (Units)numbers[0]);
    if (equation == SUMS) sum_channels_all(s, m, m[1].data);
    for (Py_ssize_t g = 0; g < s->groups && part.count; g++) {
        Shape one = group_of(s, g);
        Part read = {one.channel, one.channels}, some = common(part, equation == BACK ? read : one.own);
        if (!some.count) continue;
        if (equation == FORWARD) convolve_all(&one, m, (Units)numbers[0], some);
        if (equation == GRADIENT) convolve_gradient_all(&one, m, some);
        if (equation == BACK) convolve_back_all(&one, m, (Part){some.first - one.channel, some.count});
    }
}

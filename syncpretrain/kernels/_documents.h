/* Documents: rows that are drawn word by word, and the softmax of their words' shares; and choices, of
 * groups of units with one unit on.
 *
 * A row stays in the L1 cache from its inputs to its words. Included by _native.c alone.
 */
enum { TOGETHER = 16 }; /* words that are passed over at once if no point is among them */

/* Add the biases to the inputs of a row; return the largest sum, which nan is not. */
VECTORIZED static float add_biases(float *x, const float *bias, ptrdiff_t n)
{
    float tops[LANES], top = -INFINITY;
    for (int j = 0; j < LANES; j++) tops[j] = -INFINITY;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES)
        APART for (int j = 0; j < LANES; j++)
        {
            float t = x[i + j] + bias[i + j];
            x[i + j] = t;
            tops[j] = t > tops[j] ? t : tops[j];
        }
    for (int j = 0; i < n; i++, j++) {
        x[i] += bias[i];
        tops[j] = x[i] > tops[j] ? x[i] : tops[j];
    }
    for (int j = 0; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
    return top;
}

/* exp(x) of 0 and below: as good as 0 below -87, nan for nan. */
INLINED float exp_below_1(float x, const int is_one)
{
    float t = x;
    uint32_t bits;
    memcpy(&bits, &t, sizeof t);
    bits = bits < 0xC2AE0000u ? bits : 0xC2AE0000u; /* -87, as in sigmoid */
    memcpy(&t, &bits, sizeof t);
    float q = reduced_expm1(t, &bits, is_one);
    float y = power_of_2(bits, 0) * (q + 1.0f);
    return x == x ? y : x;
}

/* Replace the inputs of a row by exp(x - top); return their sum. */
INLINED float exp_row_any(float *x, float top, ptrdiff_t n, const int is_one)
{
    float sums[LANES] = {0}, sum = 0;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES)
        APART for (int j = 0; j < LANES; j++)
        {
            float y = exp_below_1(x[i + j] - top, is_one);
            x[i + j] = y;
            sums[j] += y;
        }
    for (int j = 0; i < n; i++, j++) sums[j] += x[i] = exp_below_1(x[i] - top, is_one);
    for (int j = 0; j < LANES; j++) sum += sums[j];
    return sum;
}

IN_WIDTHS(float, exp_row, (float *x, float top, ptrdiff_t n), x, top, n)

/* Return the sum of the squares of by x - like. */
INLINED float scaled_squares_any(const float *x, float by, const float *like, ptrdiff_t n, const int is_one)
{
    float sums[LANES] = {0}, sum = 0;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES)
        APART for (int j = 0; j < LANES; j++)
        {
            float d = fused(by, x[i + j], -like[i + j], is_one);
            sums[j] = fused(d, d, sums[j], is_one);
        }
    for (int j = 0; i < n; i++, j++) {
        float d = fused(by, x[i], -like[i], is_one);
        sums[j] = fused(d, d, sums[j], is_one);
    }
    for (int j = 0; j < LANES; j++) sum += sums[j];
    return sum;
}

IN_WIDTHS(float, scaled_squares, (const float *x, float by, const float *like, ptrdiff_t n), x, by, like, n)

/* Return the sum of words that are taken together, by pairs: short chains of sums. */
INLINED double sum_together(const float *shares)
{
    double sums[TOGETHER / 4];
    for (int k = 0; k < TOGETHER / 4; k++) {
        const float *own = shares + 4 * k;
        sums[k] = ((double)own[0] + own[1]) + ((double)own[2] + own[3]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static double sum_of_shares(const float *shares, ptrdiff_t width)
{
    double all = 0;
    ptrdiff_t j = 0;
    for (; j + TOGETHER <= width; j += TOGETHER) all += sum_together(shares + j);
    for (; j < width; j++) all += shares[j];
    return all;
}

/* Replace the shares of words in a row by numbers of words. `points` are steps along the row, one more
 * than there are words; each step but the last ends in the share of a word. A point is compared with all words
 * that are taken together, rather than with one after the other: no branch is hard to predict. */
static void draw_document(float *shares, ptrdiff_t width, const double *points,
                                     ptrdiff_t words)
{
    double length = 0, passed = 0, limits[TOGETHER];
    ptrdiff_t k = 0;
    for (ptrdiff_t i = 0; i <= words; i++) length += points[i];
    double step = sum_of_shares(shares, width) / length, at = points[0] * step;
    ptrdiff_t j = 0;
    for (; j + TOGETHER <= width; j += TOGETHER) {
        double own = sum_together(shares + j), limit = passed + own, sum = passed;
        if (k < words && at <= limit) {
            for (int i = 0; i < TOGETHER; i++) limits[i] = sum += shares[j + i];
            memset(shares + j, 0, TOGETHER * sizeof(float));
            do {
                int64_t place = 0;
                for (int i = 0; i < TOGETHER - 1; i++) place += limits[i] < at;
                shares[j + place] += 1.0f;
                at += points[++k] * step;
            } while (k < words && at <= limit);
        } else
            memset(shares + j, 0, TOGETHER * sizeof(float));
        passed = limit;
    }
    for (; j < width; j++) {
        ptrdiff_t before = k;
        passed += shares[j];
        while (k < words && at <= passed) at += points[++k] * step;
        shares[j] = (float)(k - before);
    }
    shares[width - 1] += (float)(words - k); /* whatever was lost to rounding */
}

/* Return whether `ends` are where the points of each row of m, which is written to, end: one or more of each. */
static int are_points(const Matrix *m, const Py_buffer *points, const Py_buffer *ends)
{
    const int64_t *at = ends->buf;
    int64_t first = 0;
    int valid = m->buffer.ndim == 2 && ends->shape[0] == m->rows && m->columns > 0 && lies_apart(points, m)
                && lies_apart(ends, m);
    for (Py_ssize_t i = 0; valid && i < m->rows; first = at[i++]) valid = at[i] > first;
    return valid && first == points->shape[0];
}

/* shares, points, ends: draw documents in place; the points of each end at its number in ends. */
static PyObject *draw_documents(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m;
    Py_buffer b[2];
    if (!expect(nargs, 3, "draw_documents")) return NULL;
    if (!open_all(&m, args, "w")) Py_RETURN_NOTIMPLEMENTED;
    if (!open_vectors(b, args + 1, "dl")) return closed(&m, 1, Py_NotImplemented);
    const double *points = b[0].buf;
    const int64_t *ends = b[1].buf;
    int valid = are_points(&m, b, b + 1);
    if (valid)
        EACH_ROW(m, {
            int64_t begin = i ? ends[i - 1] : 0;
            draw_document(row(&m, i), m.columns, points + begin, ends[i] - begin - 1);
        });
    PyBuffer_Release(b), PyBuffer_Release(b + 1);
    return closed(&m, 1, valid ? Py_None : Py_NotImplemented);
}

static double reconstruct_document(float *x, const float *bias, const float *like, Py_ssize_t width,
                                   const double *points, Py_ssize_t words)
{
    float top = add_biases(x, bias, width);
    float sum = exp_row(x, top, width);
    double error = scaled_squares(x, (float)words / sum, like, width);
    draw_document(x, width, points, words);
    return error;
}

/* inputs, bias, like, points, ends: replace inputs without their bias by documents; return the squared
 * error of their means. */
static PyObject *reconstruct_documents(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    Py_buffer b[2];
    double error = 0;
    if (!expect(nargs, 5, "reconstruct_documents")) return NULL;
    if (!open_all(m, args, "wrr")) Py_RETURN_NOTIMPLEMENTED;
    if (!open_vectors(b, args + 3, "dl")) return closed(m, 3, Py_NotImplemented);
    const double *points = b[0].buf;
    const int64_t *ends = b[1].buf;
    int valid = are_points(m, b, b + 1) && is_row_of(m + 1, m) && same_shape(m, m + 2)
                && apart(m, m + 1) && apart(m, m + 2);
    if (valid)
        EACH_ROW(m[0], {
            int64_t begin = i ? ends[i - 1] : 0;
            error += reconstruct_document(row(m, i), m[1].data, row(m + 2, i), m[0].columns,
                                          points + begin, ends[i] - begin - 1);
        });
    PyBuffer_Release(b), PyBuffer_Release(b + 1);
    if (!valid) return closed(m, 3, Py_NotImplemented);
    close_all(m, 3);
    return PyFloat_FromDouble(error);
}

/* Add the biases to the inputs of groups, and take the largest of each group away: none is above 0. */
VECTORIZED static void below_largest_row(float *x, const float *bias, ptrdiff_t n, ptrdiff_t choices)
{
    APART for (ptrdiff_t i = 0; i < n; i++) x[i] += bias[i];
    for (ptrdiff_t i = 0; i < n; i += choices) {
        float top = x[i];
        for (ptrdiff_t j = 1; j < choices; j++) top = x[i + j] > top ? x[i + j] : top;
        APART for (ptrdiff_t j = 0; j < choices; j++) x[i + j] -= top;
    }
}

/* Replace what is proportional to the shares of a group by them; turn on the unit at which their
 * cumulative sum passes a uniform number. */
VECTORIZED static void choose(float *x, float uniform, float *out, ptrdiff_t choices)
{
    float sum = 0, passed = 0;
    ptrdiff_t chosen = 0;
    for (ptrdiff_t j = 0; j < choices; j++) sum += x[j];
    APART for (ptrdiff_t j = 0; j < choices; j++) x[j] /= sum;
    for (ptrdiff_t j = 0; j < choices - 1; j++) {
        passed += x[j];
        chosen += passed <= uniform;
    }
    memset(out, 0, (size_t)choices * sizeof *out);
    out[chosen] = 1.0f;
}

/* A group takes the first of as many numbers as it has units, as the NumPy form does. */
static void choose_all(const Matrix *x, const float *bias, Py_ssize_t choices, Philox *state, const Matrix *out)
{
    float uniform[CHUNK];
    Py_ssize_t n = x->columns, at = CHUNK; /* of the next number, in the chunk */
    for (Py_ssize_t i = 0; i < x->rows; i++) {
        below_largest_row(row(x, i), bias, n, choices);
        exp_row(row(x, i), 0, n);
        for (Py_ssize_t j = 0; j < n; j += choices, at += choices) {
            for (; at >= CHUNK; at -= CHUNK) philox_fill(state, uniform, CHUNK);
            choose(row(x, i) + j, uniform[at], row(out, i) + j, choices);
        }
    }
}

/* x, bias, out, units of a group, key, counter: as sample_states, for softmax units in groups. */
static PyObject *sample_choices(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    Philox state;
    if (!expect(nargs, 6, "sample_choices") || !start_philox(&state, args[4], args[5])) return NULL;
    Py_ssize_t choices = PyLong_AsSsize_t(args[3]);
    if (choices == -1 && PyErr_Occurred()) return NULL;
    if (!open_all(m, args, "wrw")) Py_RETURN_NOTIMPLEMENTED;
    if (!is_row_of(&m[1], &m[0]) || !same_shape(&m[0], &m[2]) || !all_apart(m, 3) || choices < 1
        || m[0].columns % choices)
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], choose_all(&m[0], m[1].data, choices, &state, &m[2]));
    return closed(m, 3, args[2]);
}

/* Products of float32 matrices with their factors rounded to bfloat16.
 *
 * Every sum is float32 and is taken in the order of the inner index, of each pair the second number first, as
 * the instruction of _pairs.h does. So its bits do not depend on how a product is cut into blocks, and the
 * portable form has the same, but near the ends of the range: the instruction takes sums below 2^-126 for 0,
 * and adds terms of 2^128 or more as they are. Included by _native.c alone.
 */
#include "_pairs.h"

/* What a product needs beside its matrices. */
typedef struct {
    Pair panel[PANEL_PAIRS * PANEL_COLUMNS], block[BLOCK_PAIRS];
} PackedFactors;

/* Return room for the factors of a number of products at once, or NULL with an error set. */
static PackedFactors *packed_factors(Py_ssize_t count)
{
    void *room = NULL;
    if (posix_memalign(&room, 64, (size_t)count * sizeof(PackedFactors)) == 0) return room;
    PyErr_NoMemory();
    return NULL;
}

static Factor factor_of(const Matrix *m, int transposed)
{
    return transposed ? (Factor){m->data, 1, m->stride} : (Factor){m->data, m->stride, 1};
}

static Factor factor_from(Factor f, Py_ssize_t i, Py_ssize_t j)
{
    f.data += i * f.down + j * f.right;
    return f;
}

/* Fill a matrix with the product of two factors, which have `inner` columns and rows. */
static void multiply_rounded(const PairsForm *form, Factor left, Factor right, Py_ssize_t inner,
                             const Matrix *out, PackedFactors *room)
{
    for (Py_ssize_t i = 0; i < out->rows; i++) memset(row(out, i), 0, (size_t)out->columns * sizeof *out->data);
    for (Py_ssize_t k = 0, depth; k < inner; k += depth) {
        depth = inner - k < 2 * PANEL_PAIRS ? inner - k : 2 * PANEL_PAIRS;
        Py_ssize_t pairs = (depth + 1) / 2, most = BLOCK_PAIRS / pairs;
        for (Py_ssize_t i = 0, rows; i < out->rows; i += rows) {
            rows = out->rows - i < most ? out->rows - i : most;
            form->pack_rows(factor_from(left, i, k), rows, depth, room->block);
            for (Py_ssize_t j = 0, columns; j < out->columns; j += columns) {
                columns = out->columns - j < PANEL_COLUMNS ? out->columns - j : PANEL_COLUMNS;
                form->pack_panel(factor_from(right, k, j), depth, columns, room->panel);
                form->add_product(room->block, room->panel, rows, pairs, columns, row(out, i) + j, out->stride);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- from Python */

/* Open a factor of a product, whose columns or rows lie side by side. */
static int open_factor(Matrix *m, PyObject *object, int *transposed)
{
    if (PyObject_GetBuffer(object, &m->buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return 0;
    const Py_buffer *b = &m->buffer;
    const Py_ssize_t size = sizeof(float);
    int valid = b->ndim == 2 && b->itemsize == size && b->format && !strcmp(b->format, "f");
    if (valid && b->strides[1] == size && b->strides[0] >= b->shape[1] * size) {
        *transposed = 0;
        m->stride = b->strides[0] / size;
    } else if (valid && b->strides[0] == size && b->strides[1] >= b->shape[0] * size) {
        *transposed = 1;
        m->stride = b->strides[1] / size;
    } else {
        PyBuffer_Release(&m->buffer);
        PyErr_SetString(PyExc_ValueError, "got a factor that is not rows or columns of float32");
        return 0;
    }
    m->data = b->buf; /* as it lies in memory */
    m->rows = b->shape[*transposed ? 1 : 0];
    m->columns = b->shape[*transposed ? 0 : 1];
    return 1;
}

/* args: the factors; out; whether to do without the instruction for pairs. */
static PyObject *multiply_bfloat16(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int transposed[2], opened = 0, portable;
    PackedFactors *room = NULL;
    if (!expect(nargs, 4, "multiply_bfloat16") || (portable = PyObject_IsTrue(args[3])) < 0) return NULL;
    while (opened < 2 && open_factor(m + opened, args[opened], transposed + opened)) opened++;
    if (opened < 2 || !open_all(m + 2, args + 2, "w")) {
        PyErr_Clear(); /* the NumPy form reports what is wrong with it */
        return closed(m, opened, Py_NotImplemented);
    }
    const Py_ssize_t *a = m[0].buffer.shape, *b = m[1].buffer.shape;
    int fits = m[2].buffer.ndim == 2 && a[0] == m[2].rows && a[1] == b[0] && b[1] == m[2].columns;
    if (!fits || !apart(m, m + 2) || !apart(m + 1, m + 2)) return closed(m, 3, Py_NotImplemented);
    if ((room = packed_factors(1)) == NULL) return closed(m, 3, NULL);
    Factor left = factor_of(m, transposed[0]), right = factor_of(m + 1, transposed[1]);
    WORK(m[2], multiply_rounded(portable ? &PORTABLE_PAIRS : best_pairs(), left, right, a[1], m + 2, room));
    free(room);
    return closed(m, 3, args[2]);
}

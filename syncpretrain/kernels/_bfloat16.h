/* Products of float32 matrices with their factors rounded to bfloat16.
 *
 * Every sum is float32 and is taken in one of two orders of the inner index: pair after pair, of each the second
 * number first, as the instruction of _pairs.h does, or 32 numbers after 32, as the one of _amx.h does. So its bits
 * do not depend on how a product is cut into blocks, since their depth is a multiple of 32, and each order's
 * portable form has the same, but near the ends of the range: the instructions take sums below 2^-126 for 0, and add
 * terms of 2^128 or more as they are. Included by _native.c alone.
 */
#include "_pairs.h"
#include "_amx.h"

enum { FORMS = 4 };

static const PairsForm *kept_form = NULL; /* instead of the fastest; set as the module is loaded */

/* Fill a list with the forms that this processor has, the kept one and then the fastest first; return their
 * number. */
static int present_forms(const PairsForm *forms[FORMS])
{
    int count = 0;
    if (kept_form) forms[count++] = kept_form;
#if HAS_AMX
    if (kept_form != &TILES && multiplies_tiles()) forms[count++] = &TILES;
#endif
#if HAS_AVX512_BF16
    if (kept_form != &AVX512_PAIRS && multiplies_pairs()) forms[count++] = &AVX512_PAIRS;
#endif
    if (kept_form != &PORTABLE_PAIRS) forms[count++] = &PORTABLE_PAIRS;
    if (kept_form != &PORTABLE_TILES) forms[count++] = &PORTABLE_TILES;
    return count;
}

static const PairsForm *usual_form(void)
{
    const PairsForm *forms[FORMS];
    present_forms(forms);
    return forms[0];
}

/* The packed factors of a product. */
typedef struct {
    Pair panel[PANEL_PAIRS * PANEL_COLUMNS], block[BLOCK_PAIRS];
    NonZeros nonzeros; /* of the block */
} PackedFactors;

/* Return room for the factors of a number of products at once, or NULL with an error set. */
static void *rooms_of(Py_ssize_t count, size_t size)
{
    void *room = NULL;
    if (posix_memalign(&room, 64, (size_t)count * size) == 0) return room;
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
    for (Py_ssize_t i = 0; inner == 0 && i < out->rows; i++)
        memset(row(out, i), 0, (size_t)out->columns * sizeof *out->data);
    for (Py_ssize_t k = 0, depth; k < inner; k += depth) {
        depth = inner - k < 2 * PANEL_PAIRS ? inner - k : 2 * PANEL_PAIRS;
        Py_ssize_t terms = (depth + 2 * form->multiple - 1) / (2 * form->multiple);
        Py_ssize_t pairs = terms * form->multiple, most = BLOCK_PAIRS / pairs;
        for (Py_ssize_t i = 0, rows; i < out->rows; i += rows) {
            rows = out->rows - i < most ? out->rows - i : most;
            form->pack_rows(factor_from(left, i, k), rows, depth, pairs, room->block);
            if (form->find_nonzeros) form->find_nonzeros(room->block, rows, pairs, &room->nonzeros);
            for (Py_ssize_t j = 0, columns; j < out->columns; j += columns) {
                columns = out->columns - j < PANEL_COLUMNS ? out->columns - j : PANEL_COLUMNS;
                int is_finite = form->pack_panel(factor_from(right, k, j), depth, pairs, columns, room->panel);
                form->add_product(room->block, form->find_nonzeros && is_finite ? &room->nonzeros : NULL,
                                  room->panel, rows, pairs, columns, row(out, i) + j, out->stride, k == 0);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- from Python */

/* Open a factor of a product; its columns or its rows lie side by side. */
static int open_factor(Matrix *m, PyObject *object, int *transposed)
{
    if (PyObject_GetBuffer(object, &m->buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) return 0;
    const Py_buffer *b = &m->buffer;
    const Py_ssize_t size = sizeof(float);
    int valid = b->ndim == 2 && b->itemsize == size && b->format && !strcmp(b->format, "f")
                && (uintptr_t)b->buf % sizeof(float) == 0 && b->strides[0] % size == 0
                && b->strides[1] % size == 0;
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

/* Return the matrices of a product in m: the factors and out, which lies apart; or 0, with none open. */
static int open_product(Matrix *m, int *transposed, PyObject *const *objects)
{
    int opened = 0;
    while (opened < 2 && open_factor(m + opened, objects[opened], transposed + opened)) opened++;
    if (opened < 2 || !open_all(m + 2, objects + 2, "w")) {
        PyErr_Clear(); /* the NumPy form reports what is wrong with it */
        close_all(m, opened);
        return 0;
    }
    const Py_ssize_t *a = m[0].buffer.shape, *b = m[1].buffer.shape;
    if (m[2].buffer.ndim == 2 && a[0] == m[2].rows && a[1] == b[0] && b[1] == m[2].columns && apart(m, m + 2)
        && apart(m + 1, m + 2))
        return 1;
    close_all(m, 3);
    return 0;
}

static PyObject *tuple_of_names(const char *const *given, int count)
{
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(given[i]);
        if (name)
            PyTuple_SET_ITEM(names, i, name);
        else
            Py_CLEAR(names);
    }
    return names;
}

/* Return the names of the forms that this processor has, first the one that is usual. */
static PyObject *bfloat16_forms(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const PairsForm *forms[FORMS];
    const char *names[FORMS];
    int count = present_forms(forms);
    for (int i = 0; i < count; i++) names[i] = forms[i]->name;
    return expect(nargs, 0, "bfloat16_forms") ? tuple_of_names(names, count) : NULL;
}

/* Return the form of a name, or NULL with an error set. */
static const PairsForm *form_named(PyObject *name)
{
    const PairsForm *forms[FORMS];
    int count = present_forms(forms);
    for (int i = 0; PyUnicode_Check(name) && i < count; i++)
        if (PyUnicode_CompareWithASCIIString(name, forms[i]->name) == 0) return forms[i];
    PyErr_Format(PyExc_ValueError, "bfloat16: got the form %R, which this CPU does not have", name);
    return NULL;
}

/* args: the name of the form that is usual from now on. */
static PyObject *keep_bfloat16_form(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const PairsForm *form = expect(nargs, 1, "keep_bfloat16_form") ? form_named(args[0]) : NULL;
    if (form == NULL) return NULL;
    kept_form = form;
    Py_RETURN_NONE;
}

/* args: the factors; out; the name of a form, None for the usual one. */
static PyObject *multiply_bfloat16(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3];
    int transposed[2];
    if (!expect(nargs, 4, "multiply_bfloat16")) return NULL;
    const PairsForm *form = args[3] == Py_None ? usual_form() : form_named(args[3]);
    if (form == NULL) return NULL;
    if (!open_product(m, transposed, args)) Py_RETURN_NOTIMPLEMENTED;
    PackedFactors *room = rooms_of(1, sizeof *room);
    if (room == NULL) return closed(m, 3, NULL);
    Factor left = factor_of(m, transposed[0]), right = factor_of(m + 1, transposed[1]);
    WORK(m[2], multiply_rounded(form, left, right, m[0].buffer.shape[1], m + 2, room));
    free(room);
    return closed(m, 3, args[2]);
}

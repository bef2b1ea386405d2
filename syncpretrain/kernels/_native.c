/* Compiled forms of the elementwise equations; syncpretrain/kernels/native.py says what they are.
 *
 * Arrays come through the buffer protocol, so one build serves every version of NumPy. A function
 * returns NotImplemented, having done nothing, for arrays that are not rows of float32 of matching
 * shapes that lie apart: then the NumPy form decides what becomes of them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if !defined(__GNUC__) || defined(_WIN32)
#error "needs GCC or Clang on a POSIX system; without this module the NumPy forms are used"
#endif

#include "_counters.h"
#include "_loops.h"
#include "_philox.h"
#include "_normal.h"

enum {
    GIL_FROM = 4096, /* elements; less work than a change of threads costs is done with the lock */
    TILED = 1024,    /* narrow rows are taken together, up to about this many elements */
    CHUNK = 2048     /* random numbers at once: they stay in the L1 cache */
};
#define SIGNALS_EVERY 0.05 /* seconds */

/* ------------------------------------------------------------------------------- matrices */

typedef struct {
    Py_buffer buffer;
    float *data;
    Py_ssize_t rows, columns, stride; /* in elements */
} Matrix;

static int is_rows_of_float32(const Py_buffer *b)
{
    if (b->ndim < 1 || b->ndim > 2 || b->itemsize != sizeof(float) || b->format == NULL) return 0;
    if (strcmp(b->format, "f") != 0 || (uintptr_t)b->buf % sizeof(float) != 0) return 0;
    Py_ssize_t columns = b->shape[b->ndim - 1];
    if (columns > 1 && b->strides[b->ndim - 1] != sizeof(float)) return 0;
    if (b->ndim == 1 || b->shape[0] <= 1) return 1;
    return b->strides[0] % (Py_ssize_t)sizeof(float) == 0
           && b->strides[0] / (Py_ssize_t)sizeof(float) >= columns;
}

static void close_all(Matrix *matrices, int count)
{
    while (count-- > 0) PyBuffer_Release(&matrices[count].buffer);
}

/* Open one matrix for each letter: w is written to, r is not. Return 0 if one is none. */
static int open_all(Matrix *matrices, PyObject *const *objects, const char *access)
{
    for (int i = 0; access[i]; i++) {
        Matrix *m = matrices + i;
        int flags = PyBUF_STRIDES | PyBUF_FORMAT | (access[i] == 'w' ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[i], &m->buffer, flags) < 0) {
            PyErr_Clear(); /* the NumPy form reports what is wrong with it */
            close_all(matrices, i);
            return 0;
        }
        if (!is_rows_of_float32(&m->buffer)) {
            close_all(matrices, i + 1);
            return 0;
        }
        const Py_buffer *b = &m->buffer;
        m->data = b->buf;
        m->columns = b->shape[b->ndim - 1];
        m->rows = b->ndim == 1 ? 1 : b->shape[0];
        m->stride = m->rows > 1 ? b->strides[0] / (Py_ssize_t)sizeof(float) : m->columns;
    }
    return 1;
}

static int same_shape(const Matrix *a, const Matrix *b)
{
    return a->buffer.ndim == b->buffer.ndim && a->rows == b->rows && a->columns == b->columns;
}

/* Return whether b is a vector as long as a row of a. */
static int is_row_of(const Matrix *b, const Matrix *a)
{
    return b->buffer.ndim == 1 && b->columns == a->columns;
}

static int is_empty(const Matrix *m)
{
    return !m->rows || !m->columns;
}

/* Return whether two matrices share no element; columns of one array may lie between another's. */
static int apart(const Matrix *a, const Matrix *b)
{
    if (a->data > b->data) return apart(b, a);
    if (is_empty(a) || is_empty(b)) return 1;
    if (a->data + (a->rows - 1) * a->stride + a->columns <= b->data) return 1;
    if (a->rows == 1 || (b->rows > 1 && a->stride != b->stride)) return 0;
    Py_ssize_t offset = (b->data - a->data) % a->stride;
    return offset >= a->columns && offset + b->columns <= a->stride;
}

static int all_apart(const Matrix *matrices, int count)
{
    for (int i = 1; i < count; i++)
        for (int j = 0; j < i; j++)
            if (!apart(matrices + i, matrices + j)) return 0;
    return 1;
}

static int same_place(const Matrix *a, const Matrix *b)
{
    return a->data == b->data && a->stride == b->stride;
}

/* Take matrices of one shape as one long row, if their rows lie end to end. */
static void flatten(Matrix *matrices, int count)
{
    for (int i = 0; i < count; i++)
        if (matrices[i].stride != matrices[i].columns) return;
    for (int i = 0; i < count; i++) {
        matrices[i].columns *= matrices[i].rows;
        matrices[i].stride = matrices[i].columns;
        matrices[i].rows = 1;
    }
}

static float *row(const Matrix *m, Py_ssize_t i)
{
    return m->data + i * m->stride;
}

/* Do the work without the interpreter's lock if there is much of it. */
#define WORK(matrix, statement)                                                                    \
    do {                                                                                           \
        PyThreadState *thread =                                                                    \
            (matrix).rows * (matrix).columns >= GIL_FROM ? PyEval_SaveThread() : NULL;             \
        statement;                                                                                 \
        if (thread) PyEval_RestoreThread(thread);                                                  \
    } while (0)
#define EACH_ROW(matrix, statement)                                                                \
    WORK(matrix, for (Py_ssize_t i = 0; i < (matrix).rows; i++) statement)

static int expect(Py_ssize_t got, Py_ssize_t expected, const char *name)
{
    if (got == expected) return 1;
    PyErr_Format(PyExc_TypeError, "%s: got %zd arguments; it takes %zd", name, got, expected);
    return 0;
}

static Units units_of(PyObject *name)
{
    int units = 0;
    while (units < OTHER && (!PyUnicode_Check(name)
                             || PyUnicode_CompareWithASCIIString(name, UNIT_NAMES[units])))
        units++;
    return (Units)units;
}

static int doubles(PyObject *const *args, double *out, int count)
{
    for (int i = 0; i < count; i++) {
        out[i] = PyFloat_AsDouble(args[i]);
        if (out[i] == -1.0 && PyErr_Occurred()) return 0;
    }
    return 1;
}

/* The end of a function that opened `count` matrices: with them closed, return an object. */
static PyObject *closed(Matrix *matrices, int count, PyObject *result)
{
    close_all(matrices, count);
    Py_XINCREF(result);
    return result;
}

/* ------------------------------------------------------------------------- units and states */

/* Narrow rows one behind the other, taken several at a time, with as many copies of the bias. */
typedef struct {
    const float *bias;
    Py_ssize_t rows; /* at a time */
    float copies[TILED];
} Tile;

static void tile(Tile *t, const float *bias, Py_ssize_t columns, int contiguous)
{
    t->rows = contiguous && columns > 0 && columns <= TILED / 2 ? TILED / columns : 1;
    t->bias = t->rows > 1 ? t->copies : bias;
    for (Py_ssize_t i = 0; i < t->rows && t->rows > 1; i++)
        memcpy(t->copies + i * columns, bias, (size_t)columns * sizeof *bias);
}

static void means_all(const Matrix *x, const float *bias, Units units)
{
    Tile t;
    tile(&t, bias, x->columns, x->stride == x->columns);
    for (Py_ssize_t i = 0; i < x->rows; i += t.rows) {
        Py_ssize_t rows = x->rows - i < t.rows ? x->rows - i : t.rows;
        means_row(row(x, i), t.bias, rows * x->columns, units);
    }
}

static PyObject *means(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[2];
    if (!expect(nargs, 3, "means")) return NULL;
    Units units = units_of(args[2]);
    if (units == OTHER || !open_all(m, args, "wr")) Py_RETURN_NOTIMPLEMENTED;
    if (!is_row_of(&m[1], &m[0]) || !apart(&m[0], &m[1])) return closed(m, 2, Py_NotImplemented);
    WORK(m[0], means_all(&m[0], m[1].data, units));
    return closed(m, 2, args[0]);
}

static int words(PyObject *tuple, uint64_t *out, Py_ssize_t count)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "got %R; expected a tuple of %zd integers", tuple, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *word = PyNumber_Index(PyTuple_GET_ITEM(tuple, i));
        if (word == NULL) return 0;
        out[i] = PyLong_AsUnsignedLongLong(word);
        Py_DECREF(word);
        if (out[i] == (uint64_t)-1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static int start_philox(Philox *state, PyObject *key_object, PyObject *counter_object)
{
    uint64_t key[2], counter[4];
    if (!words(key_object, key, 2) || !words(counter_object, counter, 4)) return 0;
    philox_start(state, key, counter);
    return 1;
}

static void draw_all(const Matrix *x, const float *bias, Philox *state, const Matrix *out)
{
    Tile t;
    tile(&t, bias, x->columns, x->stride == x->columns && out->stride == out->columns);
    float uniform[CHUNK];
    Py_ssize_t used = 0, ready = 0, left = x->rows * x->columns;
    for (Py_ssize_t i = 0; i < x->rows; i += t.rows) {
        Py_ssize_t rows = x->rows - i < t.rows ? x->rows - i : t.rows, n = rows * x->columns;
        for (Py_ssize_t j = 0, m; j < n; j += m, used += m) {
            if (used == ready) {
                used = 0;
                ready = left < CHUNK ? left : CHUNK;
                left -= ready;
                philox_fill(state, uniform, ready);
            }
            m = n - j < ready - used ? n - j : ready - used;
            states_row(row(x, i) + j, t.bias + j, uniform + used, row(out, i) + j, m);
        }
    }
}

static PyObject *sample_states(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3]; /* x, bias, out */
    Philox state;
    if (!expect(nargs, 5, "sample_states") || !start_philox(&state, args[3], args[4])) return NULL;
    if (!open_all(m, args, "wrw")) Py_RETURN_NOTIMPLEMENTED;
    if (!is_row_of(&m[1], &m[0]) || !same_shape(&m[0], &m[2]) || !all_apart(m, 3))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], draw_all(&m[0], m[1].data, &state, &m[2]));
    return closed(m, 3, args[2]);
}

static void uniform_all(Philox *state, const Matrix *out)
{
    float chunk[CHUNK];
    for (Py_ssize_t i = 0; i < out->columns; i += CHUNK) {
        Py_ssize_t n = out->columns - i < CHUNK ? out->columns - i : CHUNK;
        philox_fill(state, chunk, n);
        memcpy(out->data + i, chunk, (size_t)n * sizeof *chunk);
    }
}

static PyObject *uniform(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[1];
    Philox state;
    if (!expect(nargs, 3, "uniform") || !start_philox(&state, args[1], args[2])) return NULL;
    if (!open_all(m, args, "w")) Py_RETURN_NOTIMPLEMENTED;
    flatten(m, 1);
    if (m[0].rows != 1) return closed(m, 1, Py_NotImplemented);
    WORK(m[0], uniform_all(&state, &m[0]));
    return closed(m, 1, args[0]);
}

/* args: out, a vector or rows side by side; key, counter. */
static PyObject *normal(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[1];
    WordStream stream = {.used = PER_BLOCK};
    if (!expect(nargs, 3, "normal") || !start_philox(&stream.state, args[1], args[2])) return NULL;
    if (!open_all(m, args, "w")) Py_RETURN_NOTIMPLEMENTED;
    EACH_ROW(m[0], for (Py_ssize_t j = 0; j < m[0].columns; j++) row(m, i)[j] = next_normal(&stream));
    return closed(m, 1, args[0]);
}

/* ------------------------------------------------------------------------ contrastive divergence */

/* Sum some rows of h, one after the other from 0 on, as NumPy does. */
static void sum_rows(const Matrix *h, Py_ssize_t first, Py_ssize_t end, float *sum)
{
    memset(sum, 0, (size_t)h->columns * sizeof *sum);
    for (Py_ssize_t i = first; i < end; i++) add_row(row(h, i), sum, h->columns);
}

static void normalize_all(const Matrix *x, float *spread)
{
    float share = (float)(1.0 / (double)x->rows), mean[NORMALIZED_COLUMNS];
    for (Py_ssize_t at = 0; at < x->columns; at += NORMALIZED_COLUMNS) {
        Py_ssize_t n = x->columns - at < NORMALIZED_COLUMNS ? x->columns - at : NORMALIZED_COLUMNS;
        memset(mean, 0, sizeof mean);
        memset(spread + at, 0, (size_t)n * sizeof *spread);
        for (Py_ssize_t i = 0; i < x->rows; i++) add_row(row(x, i) + at, mean, n);
        scale_row(mean, n, share);
        for (Py_ssize_t i = 0; i < x->rows; i++) centre_row(row(x, i) + at, spread + at, mean, n);
        spread_row(spread + at, n, share);
        for (Py_ssize_t i = 0; i < x->rows; i++) divide_row(row(x, i) + at, spread + at, n);
    }
}

static void denormalize_all(const Matrix *delta, const Matrix *normal, const float *spread)
{
    float share = (float)(1.0 / (double)delta->rows);
    float mean[NORMALIZED_COLUMNS], along[NORMALIZED_COLUMNS];
    for (Py_ssize_t at = 0; at < delta->columns; at += NORMALIZED_COLUMNS) {
        Py_ssize_t left = delta->columns - at, n = left < NORMALIZED_COLUMNS ? left : NORMALIZED_COLUMNS;
        memset(mean, 0, sizeof mean);
        memset(along, 0, sizeof along);
        for (Py_ssize_t i = 0; i < delta->rows; i++)
            sum_along_row(row(delta, i) + at, row(normal, i) + at, mean, along, n);
        scale_row(mean, n, share);
        scale_row(along, n, share);
        for (Py_ssize_t i = 0; i < delta->rows; i++)
            denormalize_row(row(delta, i) + at, row(normal, i) + at, mean, along, spread + at, n);
    }
}

static void differences_all(const Matrix *m, float *below, float examples)
{
    const Matrix *v = m, *h = m + 1, *da = m + 2, *db = m + 3;
    Py_ssize_t n = v->rows / 2;
    float scale = (float)(1.0 / (double)examples);
    memset(da->data, 0, (size_t)v->columns * sizeof *da->data);
    for (Py_ssize_t i = 0; i < v->rows; i++)
        scale_and_add_row(row(v, i), da->data, i < n ? scale : -scale, v->columns);
    sum_rows(h, 0, n, db->data);
    sum_rows(h, n, 2 * n, below);
    finish_row(db->data, below, examples, h->columns);
}

static PyObject *phase_differences(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[4]; /* v, h, da, db */
    double examples;
    if (!expect(nargs, 5, "phase_differences") || !doubles(args + 4, &examples, 1)) return NULL;
    if (!open_all(m, args, "wrww")) Py_RETURN_NOTIMPLEMENTED;
    if (m[0].buffer.ndim != 2 || m[1].buffer.ndim != 2 || m[0].rows != m[1].rows || m[0].rows < 2
        || m[0].rows % 2 || examples <= 0 || examples > 16777216 /* exact in float32 */
        || !is_row_of(&m[2], &m[0]) || !is_row_of(&m[3], &m[1]) || !all_apart(m, 4))
        return closed(m, 4, Py_NotImplemented);
    float *below = PyMem_Malloc((size_t)m[1].columns * sizeof *below);
    if (below == NULL) {
        close_all(m, 4);
        return PyErr_NoMemory();
    }
    WORK(m[0], differences_all(m, below, (float)examples));
    PyMem_Free(below);
    return closed(m, 4, Py_None);
}

static PyObject *momentum_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3]; /* parameter, gradient, velocity */
    double d[4]; /* momentum, learning rate, weight decay, l1 */
    if (!expect(nargs, 7, "momentum_step") || !doubles(args + 3, d, 4)) return NULL;
    if (!open_all(m, args, "wrw")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || !same_shape(&m[0], &m[2]) || !all_apart(m, 3))
        return closed(m, 3, Py_NotImplemented);
    float decay = (float)(d[1] * d[2]), l1 = (float)(d[1] * d[3]);
    flatten(m, 3);
    EACH_ROW(m[0], momentum_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), m[0].columns,
                                (float)d[0], (float)d[1], decay, l1));
    return closed(m, 3, Py_None);
}

/* ------------------------------------------------------------------------------ descent and errors */

static PyObject *sgd_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3]; /* parameters, gradient, velocity */
    double d[2]; /* learning rate, momentum */
    if (!expect(nargs, 6, "sgd_step") || !doubles(args + 3, d, 2)) return NULL;
    int nesterov = PyObject_IsTrue(args[5]);
    if (nesterov < 0) return NULL;
    int count = d[1] != 0 ? 3 : 2;
    if (!open_all(m, args, count == 3 ? "wrw" : "wr")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || (count == 3 && !same_shape(&m[0], &m[2]))
        || m[0].buffer.ndim != 1 || !all_apart(m, count))
        return closed(m, count, Py_NotImplemented);
    float rate = (float)d[0], momentum = (float)d[1];
    if (count == 3)
        WORK(m[0], sgd_row(m[0].data, m[1].data, m[2].data, m[0].columns, rate, momentum, nesterov));
    else
        WORK(m[0], descent_row(m[0].data, m[1].data, m[0].columns, rate));
    return closed(m, count, Py_None);
}

static PyObject *adam_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[4]; /* parameters, gradient, first, second */
    double d[4]; /* beta1, beta2, size, floor */
    if (!expect(nargs, 8, "adam_step") || !doubles(args + 4, d, 4)) return NULL;
    if (!open_all(m, args, "wrww")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || !same_shape(&m[0], &m[2]) || !same_shape(&m[0], &m[3])
        || m[0].buffer.ndim != 1 || !all_apart(m, 4))
        return closed(m, 4, Py_NotImplemented);
    WORK(m[0], adam_row(m[0].data, m[1].data, m[2].data, m[3].data, m[0].columns, (float)d[0],
                        (float)d[1], (float)d[2], (float)d[3]));
    return closed(m, 4, Py_None);
}

/* Lanes of float32 take about TILED elements each time, then go into a double. */
static double squares(const Matrix *x, const Matrix *y, const Matrix *out)
{
    double total = 0;
    float lanes[LANES] = {0};
    Py_ssize_t taken = 0;
    for (Py_ssize_t i = 0; i < x->rows; i++) {
        for (Py_ssize_t j = 0; j < x->columns; j += TILED) {
            Py_ssize_t n = x->columns - j < TILED ? x->columns - j : TILED;
            difference_row(row(x, i) + j, row(y, i) + j, row(out, i) + j, lanes, n);
            taken += n;
            if (taken >= TILED || (i == x->rows - 1 && j + n == x->columns)) {
                for (int k = 0; k < LANES; k++) total += lanes[k];
                memset(lanes, 0, sizeof lanes);
                taken = 0;
            }
        }
    }
    return total;
}

static PyObject *squared_error(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3]; /* x, y, out */
    double total;
    if (!expect(nargs, 3, "squared_error")) return NULL;
    if (!open_all(m, args, "rrw")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || !same_shape(&m[0], &m[2])
        || !(apart(&m[0], &m[2]) || same_place(&m[0], &m[2]))
        || !(apart(&m[1], &m[2]) || same_place(&m[1], &m[2])))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], total = squares(&m[0], &m[1], &m[2]));
    close_all(m, 3);
    return PyFloat_FromDouble(total);
}

static PyObject *times_derivative(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[2]; /* delta, a */
    if (!expect(nargs, 3, "times_derivative")) return NULL;
    Units units = units_of(args[2]);
    if (units == OTHER) Py_RETURN_NOTIMPLEMENTED;
    if (units == GAUSSIAN) Py_RETURN_NONE;
    if (!open_all(m, args, "wr")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || !apart(&m[0], &m[1])) return closed(m, 2, Py_NotImplemented);
    flatten(m, 2);
    EACH_ROW(m[0], derivative_row(row(&m[0], i), row(&m[1], i), m[0].columns, units));
    return closed(m, 2, Py_None);
}

static PyObject *normalize(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[2]; /* x, spread */
    if (!expect(nargs, 2, "normalize")) return NULL;
    if (!open_all(m, args, "ww")) Py_RETURN_NOTIMPLEMENTED;
    if (!is_row_of(&m[1], &m[0]) || !m[0].rows || !apart(&m[0], &m[1]))
        return closed(m, 2, Py_NotImplemented);
    WORK(m[0], normalize_all(&m[0], m[1].data));
    return closed(m, 2, Py_None);
}

static PyObject *denormalize(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Matrix m[3]; /* delta, normal, spread */
    if (!expect(nargs, 3, "denormalize")) return NULL;
    if (!open_all(m, args, "wrr")) Py_RETURN_NOTIMPLEMENTED;
    if (!same_shape(&m[0], &m[1]) || !is_row_of(&m[2], &m[0]) || !m[0].rows || !apart(&m[0], &m[1])
        || !apart(&m[0], &m[2]))
        return closed(m, 3, Py_NotImplemented);
    WORK(m[0], denormalize_all(&m[0], &m[1], m[2].data));
    return closed(m, 3, Py_None);
}

/* --------------------------------------------------------------------------------------- counters */

static int open_counters(Py_buffer *buffer, PyObject *object)
{
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE | PyBUF_ND | PyBUF_FORMAT) < 0) return 0;
    const char *format = buffer->format ? buffer->format : "B";
    if (buffer->ndim == 1 && buffer->itemsize == 8 && (!strcmp(format, "l") || !strcmp(format, "q"))
        && (uintptr_t)buffer->buf % 8 == 0)
        return 1;
    PyErr_Format(PyExc_ValueError,
                 "got counters of %d dimensions and format '%s'; expected one of int64: "
                 "take np.zeros(n, dtype=np.int64), or a view like it of shared memory",
                 buffer->ndim, format);
    PyBuffer_Release(buffer);
    return 0;
}

static int are_within(const Py_buffer *counters, Py_ssize_t first, Py_ssize_t count)
{
    Py_ssize_t n = counters->shape[0];
    if (first >= 0 && count >= 0 && first <= n && count <= n - first) return 1;
    PyErr_Format(PyExc_IndexError, "got %zd counters from %zd on; there are %zd, counted from 0", count,
                 first, n);
    return 0;
}

static void store(const Py_buffer *counters, Py_ssize_t index, int64_t value)
{
    __atomic_store_n((int64_t *)counters->buf + index, value, __ATOMIC_RELEASE);
}

/* args: first, count, target, broken, spin, timeout and stagger seconds. Only checks them. */
static int parse_wait(PyObject *const *args, const Py_buffer *counters, Wait *wait)
{
    Py_ssize_t first = PyLong_AsSsize_t(args[0]), count = PyLong_AsSsize_t(args[1]);
    long long target = PyLong_AsLongLong(args[2]);
    Py_ssize_t broken = PyLong_AsSsize_t(args[3]);
    double d[3], now = seconds();
    if (PyErr_Occurred() || !doubles(args + 4, d, 3)) return 0;
    if (!are_within(counters, first, count) || !are_within(counters, broken, 1)) return 0;
    const int64_t *all = counters->buf;
    *wait = (Wait){all + first, all + broken, count, target, now + d[0],
                   now + d[1],  d[2],         0,     SHORTEST_SLEEP};
    return 1;
}

/* Wait without the lock, but take it now and then for a signal's handler.
 *
 * Those who waited together would all want the lock at the same moment, and all but one be put to
 * sleep, to be woken some 40 us later. Who staggers finds the lock free again instead.
 */
static PyObject *finish_wait(Py_buffer *counters, Wait *wait)
{
    Waited seen;
    do {
        Py_BEGIN_ALLOW_THREADS
        seen = wait_until(wait, seconds() + SIGNALS_EVERY);
        if (seen == REACHED && wait->stagger > 0) spin_for(wait->stagger);
        Py_END_ALLOW_THREADS
        if (seen == PAUSED && PyErr_CheckSignals() < 0) {
            PyBuffer_Release(counters);
            return NULL;
        }
    } while (seen == PAUSED);
    PyBuffer_Release(counters);
    return PyLong_FromLong(seen);
}

static PyObject *wait_for_counters(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer counters;
    Wait wait;
    if (!expect(nargs, 8, "wait_for_counters") || !open_counters(&counters, args[0])) return NULL;
    if (parse_wait(args + 1, &counters, &wait)) return finish_wait(&counters, &wait);
    PyBuffer_Release(&counters);
    return NULL;
}

static PyObject *store_counter(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer counters;
    if (!expect(nargs, 3, "store_counter") || !open_counters(&counters, args[0])) return NULL;
    Py_ssize_t index = PyLong_AsSsize_t(args[1]);
    long long value = PyLong_AsLongLong(args[2]);
    int valid = !PyErr_Occurred() && are_within(&counters, index, 1);
    if (valid) store(&counters, index, value);
    PyBuffer_Release(&counters);
    if (!valid) return NULL;
    Py_RETURN_NONE;
}

static PyObject *arrive_and_wait(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer counters;
    Wait wait;
    if (!expect(nargs, 9, "arrive_and_wait") || !open_counters(&counters, args[0])) return NULL;
    Py_ssize_t rank = PyLong_AsSsize_t(args[1]);
    if (!PyErr_Occurred() && are_within(&counters, rank, 1) && parse_wait(args + 2, &counters, &wait)) {
        store(&counters, rank, wait.target);
        return finish_wait(&counters, &wait);
    }
    PyBuffer_Release(&counters);
    return NULL;
}

/* ---------------------------------------------------------------------- windows, and sums of vectors */

#include "_windows.h"
#include "_vectors.h"

/* ---------------------------------------------------------------------------- products of bfloat16 */

#include "_bfloat16.h"

/* ------------------------------------------------------------------------------ products of float32 */

#include "_float32.h"

/* --------------------------------------------------------------------------------- convolutions */

#include "_convolution.h"

/* Take a tuple of numbers; return 0 with an error set where it is none. */
static int take_numbers(PyObject *given, int count, double *numbers, const char *name)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != count) {
        PyErr_Format(PyExc_TypeError, "%s: got %R; expected a tuple of %d numbers", name, given, count);
        return 0;
    }
    return doubles(PySequence_Fast_ITEMS(given), numbers, count);
}

/* args: a tuple of the numbers of a shape. Return how many floats its scratch needs, 0 where it is too large. */
static PyObject *scratch_size(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Shape shape;
    double d[SHAPE_NUMBERS];
    if (!expect(nargs, 1, "scratch_size")) return NULL;
    if (!take_numbers(args[0], SHAPE_NUMBERS, d, "scratch_size")) return NULL;
    return PyLong_FromSsize_t(take_shape(&shape, d) ? scratch_of(&shape) : 0);
}

/* args: the matrices of an equation; a tuple of the numbers of its shape and what else it has. */
static PyObject *work_convolution(Equation equation, const char *access, int numbers,
                                  PyObject *const *args, Py_ssize_t nargs, const char *name)
{
    Matrix m[6];
    Shape shape;
    double d[SHAPE_NUMBERS + 3];
    int arrays = (int)strlen(access);
    if (!expect(nargs, arrays + 1, name) || !take_numbers(args[arrays], numbers, d, name)) return NULL;
    if (!open_all(m, args, access)) Py_RETURN_NOTIMPLEMENTED;
    int valid = take_shape(&shape, d) && fits(equation, &shape, m, d + SHAPE_NUMBERS);
    for (int i = 0; i < arrays && valid; i++)
        for (int j = 0; j < i && valid; j++)
            valid = (access[i] == 'r' && access[j] == 'r') || apart(m + i, m + j);
    if (!valid) return closed(m, arrays, Py_NotImplemented);
    WORK(m[0], work_equation(equation, &shape, m, d + SHAPE_NUMBERS));
    return closed(m, arrays, Py_None);
}

static PyObject *convolve(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return work_convolution(FORWARD, "rrrwww", SHAPE_NUMBERS + 3, args, nargs, "convolve");
}

static PyObject *convolve_gradient(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return work_convolution(GRADIENT, "rrrww", SHAPE_NUMBERS + 2, args, nargs, "convolve_gradient");
}

static PyObject *convolve_back(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return work_convolution(BACK, "rrrww", SHAPE_NUMBERS + 2, args, nargs, "convolve_back");
}

static PyObject *visible_means(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return work_convolution(VISIBLE, "wr", SHAPE_NUMBERS + 1, args, nargs, "visible_means");
}

/* ------------------------------------------------------------------------------ sparse products */

#include "_sparse.h"
#include "_binary.h"
#include "_documents.h"

/* ------------------------------------------------------------------------------------ programs */

#include "_program.h"

/* -------------------------------------------------------------------------------------- module */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    METHOD(means), METHOD(sample_states), METHOD(uniform), METHOD(normal), METHOD(phase_differences),
    METHOD(momentum_step), METHOD(sgd_step), METHOD(adam_step), METHOD(squared_error),
    METHOD(times_derivative), METHOD(normalize), METHOD(denormalize), METHOD(wait_for_counters), METHOD(store_counter), METHOD(arrive_and_wait),
    METHOD(convolve), METHOD(convolve_gradient), METHOD(convolve_back), METHOD(visible_means),
    METHOD(scratch_size),
    METHOD(binary_product), METHOD(sparse_product), METHOD(transposed_product), METHOD(csr_product),
    METHOD(draw_documents), METHOD(reconstruct_documents), METHOD(sample_choices), METHOD(multiply_bfloat16),
    METHOD(bfloat16_forms), METHOD(keep_bfloat16_form), METHOD(multiply_float32), METHOD(float32_forms),
    METHOD(keep_float32_form), METHOD(multiply_in_registers),
    METHOD(program), METHOD(run_program), METHOD(share_program),
    {NULL, NULL, 0, NULL},
};

/* UNITS has the number of each kind of units that has a compiled form, DRAWN the names of the kinds
 * with states that sample_states draws; WIDTH are the floats of the widest vectors of this CPU that have a form. */
static int add_constants(PyObject *module)
{
    PyObject *numbers = PyDict_New(), *drawn = Py_BuildValue("(s)", UNIT_NAMES[BERNOULLI]);
    int added = numbers != NULL && drawn != NULL;
    for (int units = 0; added && units < OTHER; units++) {
        PyObject *number = PyLong_FromLong(units);
        added = number != NULL && !PyDict_SetItemString(numbers, UNIT_NAMES[units], number);
        Py_XDECREF(number);
    }
    added = added && !PyObject_SetAttrString(module, "UNITS", numbers)
            && !PyObject_SetAttrString(module, "DRAWN", drawn)
            && !PyModule_AddIntConstant(module, "WIDTH", widest());
    Py_XDECREF(numbers);
    Py_XDECREF(drawn);
    return added ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_constants},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled forms; see syncpretrain.kernels.native.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}

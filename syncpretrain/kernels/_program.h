/* A whole step of training as a list of operations, worked without the interpreter's lock.
 *
 * A program is phases of shards of operations. Every thread takes shards of a phase, then waits
 * for the others. The operations are the functions of _native.c and the products of NumPy's own
 * BLAS, so the bits equal the same calls from Python. Included by _native.c alone.
 *
 * That the arrays of an operation fit each other is checked in kernels/operations.py, once.
 */
#include <limits.h>

typedef enum {
    GEMM, MEANS, DRAW, SQUARED_ERROR, DIFFERENCES, MOMENTUM, SUM_ROWS, SCALE, DERIVATIVE, MULTIPLY,
    ADAM, SGD, DECAY, COPY, SOFTMAX, WRONG, ADD, CONVOLVE, CONVOLVE_GRADIENT, CONVOLVE_BACK,
    VISIBLE_MEANS, SUM_CHANNELS, GEMM_BFLOAT16, NORMALIZE, DENORMALIZE,
    GEMM_FLOAT32, SOFTMAX_FIXED, KINDS
} Kind;

/* The letters say which arrays an operation has, and whether it writes to them; then its numbers. */
static const struct {
    const char *name, *access;
    int numbers;
} OPERATIONS[KINDS] = {
    [GEMM] = {"matmul", "ttw", 0},
    [MEANS] = {"means", "wr", 1},                           /* units */
    [DRAW] = {"sample_states", "wrw", 2},                     /* shard, block */
    [SQUARED_ERROR] = {"squared_error", "rrw", 1},          /* slot */
    [DIFFERENCES] = {"phase_differences", "wrwww", 1},      /* scratch is an array; examples */
    [MOMENTUM] = {"momentum_step", "wrw", 2},               /* weight decay, l1 */
    [SUM_ROWS] = {"sum_rows", "rw", 0},
    [SCALE] = {"scale", "w", 1},
    [DERIVATIVE] = {"times_derivative", "wr", 1},           /* units */
    [MULTIPLY] = {"multiply", "rrw", 0},
    [ADAM] = {"adam_step", "wrww", 2},                      /* beta1, beta2 */
    [SGD] = {"sgd_step", "wrw", 2},                         /* momentum, nesterov */
    [DECAY] = {"decay", "w", 1},
    [COPY] = {"copy", "rw", 0},
    [SOFTMAX] = {"softmax", "w", 0},
    [WRONG] = {"wrong", "rr", 1},                           /* slot */
    [ADD] = {"add", "rrw", 0},
    /* behind the shape's numbers: units; the first filter or channel and the end of them */
    [CONVOLVE] = {"convolve", "rrrwww", SHAPE_NUMBERS + 3},
    [CONVOLVE_GRADIENT] = {"convolve_gradient", "rrrww", SHAPE_NUMBERS + 2},
    [CONVOLVE_BACK] = {"convolve_back", "rrrww", SHAPE_NUMBERS + 2},
    [VISIBLE_MEANS] = {"visible_means", "wr", SHAPE_NUMBERS + 1},
    [SUM_CHANNELS] = {"sum_channels", "rw", SHAPE_NUMBERS},
    [GEMM_BFLOAT16] = {"matmul_bfloat16", "ttw", 0},
    [NORMALIZE] = {"normalize", "ww", 0},
    [DENORMALIZE] = {"denormalize", "wrr", 0},
    [GEMM_FLOAT32] = {"matmul_float32", "ttw", 0},
    [SOFTMAX_FIXED] = {"softmax_fixed", "w", 0},
};
enum { MOST_ARRAYS = 6, MOST_NUMBERS = SHAPE_NUMBERS + 3 };

typedef struct {
    Kind kind;
    Matrix m[MOST_ARRAYS];
    int transposed[2]; /* the factors of a product */
    double number[MOST_NUMBERS];
    Shape shape; /* of a convolution */
} Operation;

/* What a shard packs the factors of a product into. */
typedef union {
    PackedFactors rounded;
    Float32Room single;
} Room;

typedef struct {
    Operation *operations;
    Py_ssize_t *ends; /* of the operations of each shard of each phase */
    Py_ssize_t phases, shards, count;
    Py_ssize_t slots; /* results are at least as many */
    void *sgemm;
    int wide; /* its integers have 64 bits */
    Room *rooms; /* of each shard, where products are not the BLAS's */
} Program;

/* What differs from step to step, and what comes out: arrays of the caller. */
typedef struct {
    double momentum, rate;       /* of the learning */
    double size, floor;          /* of Adam's step */
    uint64_t key[2], step, epoch; /* of what is drawn */
    double *results;
} Values;

typedef void (*Narrow)(int, int, int, int, int, int, float, const float *, int, const float *, int,
                       float, float *, int);
typedef void (*Wide)(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                     const float *, int64_t, float, float *, int64_t);
enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };

static void multiply_matrices(const Program *program, const Operation *op)
{
    const Matrix *a = op->m, *b = op->m + 1, *c = op->m + 2;
    int ta = op->transposed[0] ? TRANSPOSED : AS_IS, tb = op->transposed[1] ? TRANSPOSED : AS_IS;
    Py_ssize_t inner = op->transposed[0] ? a->rows : a->columns;
    if (program->wide)
        ((Wide)program->sgemm)(ROW_MAJOR, ta, tb, c->rows, c->columns, inner, 1.0f, a->data,
                               a->stride, b->data, b->stride, 0.0f, c->data, c->stride);
    else
        ((Narrow)program->sgemm)(ROW_MAJOR, ta, tb, (int)c->rows, (int)c->columns, (int)inner, 1.0f,
                                 a->data, (int)a->stride, b->data, (int)b->stride, 0.0f, c->data,
                                 (int)c->stride);
}

VECTORIZED static void multiply_row(const float *x, const float *y, float *out, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] * y[i];
}

VECTORIZED static void plus_row(const float *x, const float *y, float *out, ptrdiff_t n)
{
    APART for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

/* The exponential is the C library's, or has the same bits everywhere. */
static void softmax_row(float *x, Py_ssize_t n, int is_fixed)
{
    float largest = x[0], sum = 0;
    for (Py_ssize_t i = 1; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    if (is_fixed)
        sum = exp_row(x, largest, n);
    else
        for (Py_ssize_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - largest);
    for (Py_ssize_t i = 0; i < n; i++) x[i] /= sum;
}

/* As in NumPy, the first nan is larger than any number. */
static Py_ssize_t place_of_largest(const float *x, Py_ssize_t n)
{
    Py_ssize_t best = 0;
    for (Py_ssize_t i = 1; i < n; i++) best = !(x[i] <= x[best]) && x[best] == x[best] ? i : best;
    return best;
}

#define ROWS_OF(matrix, statement)                                                                 \
    for (Py_ssize_t i = 0; i < (matrix).rows; i++) statement

static void work_operation(const Program *program, const Operation *op, const Values *values,
                           Room *room)
{
    const Matrix *m = op->m;
    const double *d = op->number;
    Py_ssize_t n = m[0].columns;
    switch (op->kind) {
    case GEMM: multiply_matrices(program, op); break;
    case MEANS: means_all(&m[0], m[1].data, (Units)d[0]); break;
    case DRAW: {
        Philox state;
        uint64_t counter[4] = {(uint64_t)d[1], values->step, values->epoch, (uint64_t)d[0]};
        philox_start(&state, values->key, counter);
        draw_all(&m[0], m[1].data, &state, &m[2]);
        break;
    }
    case SQUARED_ERROR: values->results[(Py_ssize_t)d[0]] = squares(&m[0], &m[1], &m[2]); break;
    case DIFFERENCES: differences_all(m, m[4].data, (float)d[0]); break;
    case MOMENTUM:
        ROWS_OF(m[0], momentum_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), n,
                                   (float)values->momentum, (float)values->rate,
                                   (float)(values->rate * d[0]), (float)(values->rate * d[1])));
        break;
    case SUM_ROWS: sum_rows(&m[0], 0, m[0].rows, m[1].data); break;
    case SCALE: ROWS_OF(m[0], scale_row(row(&m[0], i), n, (float)d[0])); break;
    case DERIVATIVE:
        if ((Units)d[0] == GAUSSIAN) break;
        ROWS_OF(m[0], derivative_row(row(&m[0], i), row(&m[1], i), n, (Units)d[0]));
        break;
    case MULTIPLY:
        ROWS_OF(m[0], multiply_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), n));
        break;
    case ADD: ROWS_OF(m[0], plus_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), n)); break;
    case ADAM:
        ROWS_OF(m[0], adam_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), row(&m[3], i), n,
                               (float)d[0], (float)d[1], (float)values->size,
                               (float)values->floor));
        break;
    case SGD:
        if (d[0] == 0)
            ROWS_OF(m[0], descent_row(row(&m[0], i), row(&m[1], i), n, (float)values->rate));
        else
            ROWS_OF(m[0], sgd_row(row(&m[0], i), row(&m[1], i), row(&m[2], i), n,
                                  (float)values->rate, (float)d[0], d[1] != 0));
        break;
    case DECAY: ROWS_OF(m[0], scale_row(row(&m[0], i), n, (float)(1 - values->rate * d[0]))); break;
    case COPY: ROWS_OF(m[0], memcpy(row(&m[1], i), row(&m[0], i), (size_t)n * sizeof(float))); break;
    case SOFTMAX:
    case SOFTMAX_FIXED: ROWS_OF(m[0], softmax_row(row(&m[0], i), n, op->kind == SOFTMAX_FIXED)); break;
    case WRONG: {
        Py_ssize_t count = 0;
        ROWS_OF(m[0], count += place_of_largest(row(&m[0], i), n) != place_of_largest(row(&m[1], i), n));
        values->results[(Py_ssize_t)d[0]] = (double)count;
        break;
    }
    case CONVOLVE:
    case CONVOLVE_GRADIENT:
    case CONVOLVE_BACK:
    case VISIBLE_MEANS:
    case SUM_CHANNELS:
        work_equation((Equation)(op->kind - CONVOLVE), &op->shape, m, d + SHAPE_NUMBERS);
        break;
    case GEMM_BFLOAT16:
        multiply_rounded(usual_form(), factor_of(m, op->transposed[0]), factor_of(m + 1, op->transposed[1]),
                         op->transposed[0] ? m[0].rows : m[0].columns, m + 2, &room->rounded);
        break;
    case GEMM_FLOAT32:
        multiply_singles(usual_float32_form(), factor_of(m, op->transposed[0]),
                         factor_of(m + 1, op->transposed[1]), op->transposed[0] ? m[0].rows : m[0].columns,
                         m + 2, &room->single);
        break;
    case NORMALIZE: normalize_all(&m[0], m[1].data); break;
    case DENORMALIZE: denormalize_all(&m[0], &m[1], m[2].data); break;
    case KINDS: break;
    }
}

/* Wait for the other workers, for up to `limit` seconds in all.
 *
 * Of a look that took longer, only so much counts: the process was suspended meanwhile.
 */
static Waited wait_for_others(Wait *wait, double look, double limit)
{
    double waited = 0, begun = seconds();
    wait->spin_until += begun;
    wait->deadline = begun + 1e9; /* never: `limit` decides */
    for (;;) {
        Waited seen = wait_until(wait, begun + (limit - waited < look ? limit - waited : look));
        if (seen != PAUSED) return seen;
        double now = seconds();
        waited += now - begun < look ? now - begun : look;
        if (waited >= limit) return TIMED_OUT;
        begun = now;
    }
}

/* Run one shard of one phase, by its number. */
static void work_shard(const Program *program, Py_ssize_t at, const Values *values)
{
    Room *room = program->rooms ? program->rooms + at % program->shards : NULL;
    for (Py_ssize_t i = at ? program->ends[at - 1] : 0; i < program->ends[at]; i++)
        work_operation(program, program->operations + i, values, room);
}

static void work_program(const Program *program, const Values *values)
{
    for (Py_ssize_t at = 0; at < program->phases * program->shards; at++) work_shard(program, at, values);
}

/* Counters of a program with shards that any free thread takes, a cache line apart. Shards are numbered
 * through phases and steps: numbers below `OPEN` may run, numbers below `TAKEN` run or have run, and `DONE`
 * of them are done:
 *
 *     step            base                         base + total        (two phases of three shards)
 *     number            | 0   1   2 | 3   4   5 |
 *     TAKEN = base + 2          ^                 the next shard to take
 *     OPEN  = base + 3              ^             3 waits until 0, 1 and 2 are done
 *
 * Why this is safe without a lock:
 *
 * - All three counters only grow, and a number belongs to one shard of one step for ever. So a helper with
 *   the `base` of a step that is over finds at >= total, and leaves; and a compare-and-swap that succeeds
 *   proves that nobody took this shard since `TAKEN` was read.
 * - The owner begins a step only when the last one is done, so at >= 0: no helper is ahead of its step.
 * - Only open shards are taken, so DONE is a whole number of phases only when these phases are done. The
 *   thread that ends the last shard opens the next phase. Nobody opens a phase behind the last one: the
 *   arrays of the next step are not ready until its owner says so.
 * - Each thread adds to DONE after its writes, and the last one stores OPEN after all of these additions.
 *   So whoever sees OPEN sees all that the phases before have written. */
enum { TAKEN = 0, DONE = 8, OPEN = 16, SHARED_COUNTERS = 17 };

#define MOST_COUNTED (INT64_MAX / 2) /* so that counting on from it does not overflow */

static Waited work_shared_program(const Program *program, const Values *values, int64_t *counters,
                                  int64_t base, int is_owner, Wait wait, double look, double limit)
{
    int64_t total = program->phases * program->shards, shards = program->shards;
    if (is_owner) __atomic_store_n(counters + OPEN, base + shards, __ATOMIC_RELEASE);
    for (;;) {
        int64_t taken = __atomic_load_n(counters + TAKEN, __ATOMIC_ACQUIRE), at = taken - base;
        if (at >= total && !is_owner) return REACHED; /* or it is another step's */
        if (at < total && taken < __atomic_load_n(counters + OPEN, __ATOMIC_ACQUIRE)) {
            if (!__atomic_compare_exchange_n(counters + TAKEN, &taken, taken + 1, 0, __ATOMIC_ACQ_REL,
                                             __ATOMIC_RELAXED))
                continue;
            work_shard(program, at, values);
            int64_t done = __atomic_add_fetch(counters + DONE, 1, __ATOMIC_ACQ_REL);
            if ((done - base) % shards == 0 && done - base < total)
                __atomic_store_n(counters + OPEN, done + shards, __ATOMIC_RELEASE);
            continue;
        }
        Wait own = wait;
        own.first = counters + (at < total ? OPEN : DONE);
        own.target = at < total ? taken + 1 : base + total;
        Waited seen = wait_for_others(&own, look, limit);
        if (seen != REACHED || at >= total) return seen;
    }
}

/* ---------------------------------------------------------------------------------- from Python */

static void free_program(PyObject *capsule)
{
    Program *program = PyCapsule_GetPointer(capsule, "syncpretrain.program");
    if (program == NULL) return;
    for (Py_ssize_t i = 0; program->operations && i < program->count; i++) {
        Operation *op = program->operations + i;
        close_all(op->m, (int)strlen(OPERATIONS[op->kind].access));
    }
    PyMem_Free(program->operations);
    PyMem_Free(program->ends);
    free(program->rooms);
    PyMem_Free(program);
}

/* Take the shape of a convolution, if it is one. */
static int take_convolution(Operation *op)
{
    if (op->kind < CONVOLVE || op->kind > SUM_CHANNELS) return 1;
    Equation equation = (Equation)(op->kind - CONVOLVE);
    if (take_shape(&op->shape, op->number) && fits(equation, &op->shape, op->m, op->number + SHAPE_NUMBERS))
        return 1;
    PyErr_SetString(PyExc_ValueError, "got a shape of a convolution that does not fit its arrays");
    return 0;
}

/* Return whether the sizes of a product are integers of its function. */
static int sizes_fit(const Operation *op, int wide)
{
    for (int i = 0; i < 3 && !wide; i++) {
        if (op->m[i].rows <= INT_MAX && op->m[i].columns <= INT_MAX && op->m[i].stride <= INT_MAX)
            continue;
        PyErr_SetString(PyExc_ValueError, "got a product too large for a BLAS of 32-bit integers");
        return 0;
    }
    return 1;
}

/* Make room for the factors of each shard, if it is the first operation to need it. */
static int take_rooms(Program *program, const Operation *op)
{
    if ((op->kind != GEMM_BFLOAT16 && op->kind != GEMM_FLOAT32) || program->rooms) return 1;
    program->rooms = rooms_of(program->shards, sizeof *program->rooms);
    return program->rooms != NULL;
}

/* Make room for the result of an operation that has one. */
static int take_slot(Program *program, const Operation *op)
{
    if (op->kind != SQUARED_ERROR && op->kind != WRONG) return 1;
    if (!(op->number[0] >= 0 && op->number[0] < INT_MAX)) {
        PyErr_SetString(PyExc_ValueError, "got a slot that is none");
        return 0;
    }
    if (op->number[0] >= (double)program->slots) program->slots = (Py_ssize_t)op->number[0] + 1;
    return 1;
}

static int open_operation(Operation *op, PyObject *tuple)
{
    PyObject **items = PySequence_Fast_ITEMS(tuple);
    Py_ssize_t length = PySequence_Fast_GET_SIZE(tuple);
    int kind = 0;
    while (kind < KINDS && (!PyUnicode_Check(items[0])
                            || PyUnicode_CompareWithASCIIString(items[0], OPERATIONS[kind].name)))
        kind++;
    if (kind == KINDS) {
        PyErr_Format(PyExc_ValueError, "got operation %R; there is no such", items[0]);
        return 0;
    }
    const char *access = OPERATIONS[kind].access;
    int arrays = (int)strlen(access), numbers = OPERATIONS[kind].numbers, opened = 0;
    op->kind = (Kind)kind;
    if (length != 1 + arrays + numbers) {
        PyErr_Format(PyExc_ValueError, "got %zd arguments for operation %R", length - 1, items[0]);
        return 0;
    }
    for (; opened < arrays; opened++) {
        char letter[2] = {access[opened], 0};
        if (letter[0] == 't') {
            if (!open_factor(op->m + opened, items[1 + opened], op->transposed + opened)) break;
        } else if (!open_all(op->m + opened, items + 1 + opened, letter)) {
            PyErr_Format(PyExc_ValueError, "operation %R: array %d is not rows of float32", items[0],
                         opened + 1);
            break;
        }
    }
    if (opened == arrays && doubles(items + 1 + arrays, op->number, numbers)) return 1;
    close_all(op->m, opened);
    return 0;
}

/* args: phases, a list of lists (shards) of lists of tuples; the address of sgemm; whether wide. */
static PyObject *program(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!expect(nargs, 3, "program")) return NULL;
    Program *made = PyMem_Calloc(1, sizeof *made);
    if (made == NULL) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(made, "syncpretrain.program", free_program);
    if (capsule == NULL) {
        PyMem_Free(made);
        return NULL;
    }
    made->sgemm = PyLong_AsVoidPtr(args[1]);
    made->wide = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred() || !PyList_Check(args[0])) goto failed;
    made->phases = PyList_GET_SIZE(args[0]);
    Py_ssize_t total = 0;
    for (Py_ssize_t phase = 0; phase < made->phases; phase++) {
        PyObject *shards = PyList_GET_ITEM(args[0], phase); /* borrowed */
        if (!PyList_Check(shards) || (phase && PyList_GET_SIZE(shards) != made->shards)) goto failed;
        made->shards = PyList_GET_SIZE(shards);
        for (Py_ssize_t shard = 0; shard < made->shards; shard++) {
            PyObject *operations = PyList_GET_ITEM(shards, shard);
            if (!PyList_Check(operations)) goto failed;
            total += PyList_GET_SIZE(operations);
        }
    }
    made->operations = PyMem_Calloc((size_t)total + 1, sizeof *made->operations);
    made->ends = PyMem_Calloc((size_t)(made->phases * made->shards) + 1, sizeof *made->ends);
    if (made->operations == NULL || made->ends == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t at = 0; at < made->phases * made->shards; at++) {
        PyObject *shards = PyList_GET_ITEM(args[0], at / made->shards);
        PyObject *operations = PyList_GET_ITEM(shards, at % made->shards);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(operations); i++) {
            PyObject *tuple = PyList_GET_ITEM(operations, i);
            Operation *op = made->operations + made->count;
            if (made->count == total || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) < 1
                || !open_operation(op, tuple))
                goto failed;
            made->count++; /* from here on its arrays are closed with the program */
            if ((op->kind == GEMM && !sizes_fit(op, made->wide)) || !take_slot(made, op)
                || !take_convolution(op) || !take_rooms(made, op))
                goto failed;
        }
        made->ends[at] = made->count;
    }
    return capsule;
failed:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "got no lists, of one length, of lists of tuples");
    Py_DECREF(capsule);
    return NULL;
}

/* What both ways to run a program are given first. */
typedef struct {
    Program *program;
    Py_buffer buffers[4]; /* numbers, words, results, counters */
    int opened;
    Values values;
} Call;

static void close_call(Call *call)
{
    while (call->opened-- > 0) PyBuffer_Release(call->buffers + call->opened);
}

/* args: program, numbers (4 float64), words (4 uint64), results (float64); if shared, counters (int64). */
static int open_call(Call *call, PyObject *const *args, int is_shared)
{
    Py_buffer *b = call->buffers;
    call->opened = 0;
    call->program = PyCapsule_GetPointer(args[0], "syncpretrain.program");
    if (call->program == NULL) return 0;
    if (open_vectors(b, args + 1, "dLd")) call->opened = 3;
    if (call->opened == 3 && is_shared && open_counters(b + 3, args[4])) call->opened++;
    if (call->opened == 3 + is_shared && b[0].shape[0] >= 4 && b[1].shape[0] >= 4 && !b[2].readonly
        && b[2].shape[0] >= call->program->slots) {
        const double *v = b[0].buf;
        const uint64_t *w = b[1].buf;
        call->values = (Values){v[0], v[1], v[2], v[3], {w[0], w[1]}, w[2], w[3], b[2].buf};
        return 1;
    }
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "got values that fit no program");
    close_call(call);
    return 0;
}

static int longs(PyObject *const *objects, long *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLong(objects[i]);
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

/* args: program, numbers, words, results. */
static PyObject *run_program(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Call call;
    if (!expect(nargs, 4, "run_program") || !open_call(&call, args, 0)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    work_program(call.program, &call.values);
    Py_END_ALLOW_THREADS
    close_call(&call);
    Py_RETURN_NONE;
}

/* args: program, numbers, words, results, counters; first, base, broken, is_owner; spin, look and
 * timeout seconds. Return as wait_for_counters does. */
static PyObject *share_program(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Call call;
    long n[4];
    double d[3];
    if (!expect(nargs, 12, "share_program") || !longs(args + 5, n, 4) || !doubles(args + 9, d, 3)
        || !open_call(&call, args, 1))
        return NULL;
    PyObject *result = NULL;
    int64_t *counters = call.buffers[3].buf;
    int within = are_within(call.buffers + 3, n[0], SHARED_COUNTERS) && are_within(call.buffers + 3, n[2], 1);
    if (within && (n[1] < 0 || n[1] > MOST_COUNTED
                   || n[1] > __atomic_load_n(counters + n[0] + TAKEN, __ATOMIC_ACQUIRE))) {
        PyErr_SetString(PyExc_ValueError, "got a first shard that comes after those that were taken");
    } else if (within) {
        Wait wait = {NULL, counters + n[2], 1, 0, d[0], 0, 0, 0, SHORTEST_SLEEP};
        Waited seen;
        Py_BEGIN_ALLOW_THREADS
        seen = work_shared_program(call.program, &call.values, counters + n[0], n[1], (int)n[3], wait,
                                   d[1], d[2]);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(seen);
    }
    close_call(&call);
    return result;
}

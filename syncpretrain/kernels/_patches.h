/* The ways back from maxima. Included by _native.c alone.
 *
 * Of a block only one number has a derivative, for each filter another. So the gradient of a filter is the
 * sum of the patches of images that were largest, each times its number; and what goes back to a window is
 * the sum of the filters that were largest there. That is a quarter of a product's work, or less.
 */
enum { TILE = 7 }; /* vectors summed at once: in the registers of every processor */

/* Windows as vectors: those of a run lie side by side, the last one filled with what comes behind the
 * run. They are summed in cuts: several runs of few vectors, or a part of a long run. */
typedef struct {
    Windows w;
    Py_ssize_t vectors, padded;          /* of a run; floats of a window of vectors */
    Py_ssize_t cuts;
    Py_ssize_t block, rows, columns;     /* places of a block; blocks of an image */
    Py_ssize_t at_once, most;            /* images; numbers of a list */
    float *images, *sums;                /* padded images; filters or their gradients */
    Index *ends, *at;                    /* of each list; what is multiplied by its numbers */
    float *by;                           /* the numbers */
    Index *shifts;                       /* of the places of a block, in an image */
    Index *found;                        /* places of a row of blocks */
    float *read;                         /* and their numbers */
} Patches;

typedef struct {
    Py_ssize_t run, runs, vector, vectors; /* the first and how many */
} Cut;

static Cut cut_of(const Patches *p, Py_ssize_t i)
{
    Py_ssize_t size = p->w.size, parts = p->cuts / size;
    if (p->vectors * 2 <= TILE) {
        Py_ssize_t first = size * i / p->cuts;
        return (Cut){first, size * (i + 1) / p->cuts - first, 0, p->vectors};
    }
    Py_ssize_t part = i % parts, first = p->vectors * part / parts;
    return (Cut){i / parts, 1, first, p->vectors * (part + 1) / parts - first};
}

/* Set up the vectors of windows on some images, for the gradient, or on one, for the way back. */
static Py_ssize_t open_patches(Patches *p, const Shape *s, Py_ssize_t channels, Py_ssize_t filters,
                               int is_back, float *given)
{
    Scratch room = open_scratch(given);
    Windows w = windows_of(s, channels, 0);
    *p = (Patches){.w = w, .vectors = (w.run + VEC - 1) / VEC, .block = s->pool * s->pool};
    p->padded = w.size * p->vectors * VEC;
    Py_ssize_t at_once = TILE / p->vectors; /* runs in a cut */
    p->cuts = at_once > 1 ? (w.size + at_once - 1) / at_once : w.size * ((p->vectors + TILE - 1) / TILE);
    p->rows = w.rows / s->pool;
    p->columns = w.columns / s->pool;
    Py_ssize_t blocks = p->rows * p->columns, size = w.image + 2 * blocks * s->filters;
    p->at_once = size < IMAGES && !is_back ? IMAGES / size : 1;
    p->most = is_back ? filters : p->at_once * blocks;
    Py_ssize_t lists = is_back ? blocks * p->block : filters;
    p->images = take(&room, p->at_once * w.image);
    p->sums = take(&room, filters * p->padded);
    p->ends = (Index *)take(&room, lists);
    p->at = (Index *)take(&room, lists * p->most);
    p->by = take(&room, lists * p->most);
    p->shifts = (Index *)take(&room, p->block);
    p->found = (Index *)take(&room, p->columns * filters);
    p->read = take(&room, p->columns * filters);
    return room.used;
}

static void start_patches(Patches *p, const Shape *s)
{
    for (Py_ssize_t i = 0; i < p->block; i++)
        p->shifts[i] = (Index)(i / s->pool * p->w.line + i % s->pool * p->w.channels);
    memset(p->images, 0, (size_t)(p->at_once * p->w.image) * sizeof *p->images);
}

/* Leave places as integers in `out`, and numbers in `by`: 0 for a place that is none. */
VECTORIZED static void read_places(const float *places, const float *delta, float block, Py_ssize_t n,
                                   int32_t *out, float *by)
{
    APART for (Py_ssize_t i = 0; i < n; i++)
    {
        float least = places[i] > 0.0f ? places[i] : 0.0f; /* nan is not */
        int32_t place = (int32_t)(least < block ? least : 0.0f);
        out[i] = place;
        by[i] = (float)place == places[i] ? delta[i] : 0.0f;
    }
}

/* Read some filters of a row of blocks. */
static void read_row(const Patches *p, Py_ssize_t filters, const float *delta, const float *places, Part part)
{
    float block = (float)p->block;
    if (part.count == filters) {
        read_places(places, delta, block, p->columns * filters, (int32_t *)p->found, p->read);
        return;
    }
    for (Py_ssize_t j = 0, at = part.first; j < p->columns; j++, at += filters)
        read_places(places + at, delta + at, block, part.count, (int32_t *)p->found + j * part.count,
                    p->read + j * part.count);
}

/* List for each filter where in the images the patches lie that belong to it, and their numbers. */
static void list_patches(const Patches *p, const Shape *s, const Matrix *delta, const Matrix *places,
                         Py_ssize_t first, Py_ssize_t examples, Part part)
{
    Index *at = p->at, *ends = p->ends;
    float *by = p->by;
    Py_ssize_t most = p->most, step = s->pool * p->w.channels, stride = p->columns * s->filters;
    for (Py_ssize_t f = 0; f < part.count; f++) ends[f] = (Index)(f * most);
    for (Py_ssize_t i = 0; i < examples * p->rows; i++) {
        Py_ssize_t example = i / p->rows, start = i % p->rows * stride;
        Py_ssize_t base = example * p->w.image + i % p->rows * s->pool * p->w.line;
        const Index *found = p->found, *shifts = p->shifts;
        const float *read = p->read;
        read_row(p, s->filters, row(delta, first + example) + start, row(places, first + example) + start,
                 part);
        for (Py_ssize_t j = 0; j < p->columns; j++, base += step)
            for (Py_ssize_t f = 0; f < part.count; f++, found++, read++) {
                Index to = ends[f];
                at[to] = (Index)base + shifts[*found];
                by[to] = *read;
                ends[f] = to + (*read != 0.0f);
            }
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

/* The vectors of a cut, with their number in the sum and their place in an image. */
#define EACH_VECTOR(runs, vectors, statement)                                                       \
    UNROLLED for (int r = 0; r < (runs); r++)                                                       \
    {                                                                                               \
        UNROLLED for (int v = 0; v < (vectors); v++)                                                \
        {                                                                                           \
            ptrdiff_t place = r * line + v * VEC;                                                   \
            int t = r * (vectors) + v;                                                              \
            (void)place;                                                                            \
            statement;                                                                              \
        }                                                                                           \
    }

INLINED void add_patches_cut(const float *images, const Index *at, const float *by, Py_ssize_t n,
                             ptrdiff_t line, float *sums, const int runs, const int vectors)
{
    Vec sum[TILE];
    EACH_VECTOR(runs, vectors, sum[t] = CONST_VEC_AT(sums + t * VEC))
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = images + at[i];
        float factor = by[i];
        EACH_VECTOR(runs, vectors, sum[t] += factor * CONST_VEC_AT(from + place))
    }
    EACH_VECTOR(runs, vectors, VEC_AT(sums + t * VEC) = sum[t])
}

INLINED void add_filters_cut(const float *filters, const Index *at, const float *by, Py_ssize_t n,
                             ptrdiff_t line, float *image, const int runs, const int vectors)
{
    Vec sum[TILE];
    EACH_VECTOR(runs, vectors, sum[t] = (Vec){0})
    for (Py_ssize_t i = 0; i < n; i++) {
        const float *from = filters + at[i] * (ptrdiff_t)(runs * vectors * VEC);
        float factor = by[i];
        EACH_VECTOR(runs, vectors, sum[t] += factor * CONST_VEC_AT(from + t * VEC))
    }
    EACH_VECTOR(runs, vectors, VEC_AT(image + place) += sum[t])
}

/* Call a function of a cut whose size the compiler knows. */
#define OF_CUT(function, cut, ...)                                                                  \
    switch (8 * (cut).runs + (cut).vectors) {                                                       \
    case 9: function(__VA_ARGS__, 1, 1); break;                                                     \
    case 10: function(__VA_ARGS__, 1, 2); break;                                                    \
    case 11: function(__VA_ARGS__, 1, 3); break;                                                    \
    case 12: function(__VA_ARGS__, 1, 4); break;                                                    \
    case 13: function(__VA_ARGS__, 1, 5); break;                                                    \
    case 14: function(__VA_ARGS__, 1, 6); break;                                                    \
    case 15: function(__VA_ARGS__, 1, 7); break;                                                    \
    case 17: function(__VA_ARGS__, 2, 1); break;                                                    \
    case 18: function(__VA_ARGS__, 2, 2); break;                                                    \
    case 19: function(__VA_ARGS__, 2, 3); break;                                                    \
    case 25: function(__VA_ARGS__, 3, 1); break;                                                    \
    case 26: function(__VA_ARGS__, 3, 2); break;                                                    \
    case 33: function(__VA_ARGS__, 4, 1); break;                                                    \
    case 41: function(__VA_ARGS__, 5, 1); break;                                                    \
    case 49: function(__VA_ARGS__, 6, 1); break;                                                    \
    case 57: function(__VA_ARGS__, 7, 1); break;                                                    \
    }

/* Add up the patches of each list to the gradient of its filter. */
VECTORIZED static void add_patches(const Patches *p, Py_ssize_t filters)
{
    for (Py_ssize_t i = 0; i < p->cuts; i++) {
        Cut cut = cut_of(p, i);
        const float *images = p->images + cut.run * p->w.line + cut.vector * VEC;
        float *sums = p->sums + (cut.run * p->vectors + cut.vector) * VEC;
        for (Py_ssize_t f = 0; f < filters; f++, sums += p->padded)
            OF_CUT(add_patches_cut, cut, images, p->at + f * p->most, p->by + f * p->most,
                   p->ends[f] - f * p->most, p->w.line, sums)
    }
}

/* Add to the windows of an image the filters of their lists.
 *
 * Row after row, for a sum that overlaps the one before it would wait for it. */
VECTORIZED static void add_filters(const Patches *p, Py_ssize_t filters, Py_ssize_t pool)
{
    Py_ssize_t lists = p->columns * p->block; /* of a row of blocks */
    const float *part = p->sums;
    for (Py_ssize_t i = 0; i < p->cuts; i++) {
        Cut cut = cut_of(p, i);
        float *image = p->images + cut.run * p->w.line + cut.vector * VEC;
        for (Py_ssize_t j = 0; j < lists; j++) {
            float *to = image + j / p->block * pool * p->w.channels + p->shifts[j % p->block];
            Py_ssize_t k = j;
            for (Py_ssize_t r = 0; r < p->rows; r++, k += lists, to += pool * p->w.line)
                OF_CUT(add_filters_cut, cut, part, p->at + k * p->most, p->by + k * p->most,
                       p->ends[k] - k * p->most, p->w.line, to)
        }
        part += filters * cut.runs * cut.vectors * VEC;
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

static void gradient_of_largest(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *x = m, *delta = m + 1, *places = m + 2, *out = m + 3;
    Patches p;
    open_patches(&p, s, s->channels, part.count, 0, m[4].data);
    start_patches(&p, s);
    memset(p.sums, 0, (size_t)(part.count * p.padded) * sizeof *p.sums);
    for (Py_ssize_t first = 0; first < x->rows; first += p.at_once) {
        Py_ssize_t examples = x->rows - first < p.at_once ? x->rows - first : p.at_once;
        for (Py_ssize_t e = 0; e < examples; e++)
            pad_image(s, &p.w, row(x, first + e), p.images + e * p.w.image);
        list_patches(&p, s, delta, places, first, examples, part);
        add_patches(&p, part.count);
    }
    for (Py_ssize_t k = 0; k < p.w.fan; k++) {
        const float *from = p.sums + k / p.w.run * p.vectors * VEC + k % p.w.run;
        float *to = row(out, k) + part.first;
        for (Py_ssize_t f = 0; f < part.count; f++) to[f] = from[f * p.padded];
    }
}

/* Fill p->sums with the filters of some channels, cut after cut, filter after filter. */
static void turn_filters(const Patches *p, const Shape *s, const Matrix *weight, Py_ssize_t channel)
{
    float *to = p->sums;
    for (Py_ssize_t i = 0; i < p->cuts; i++) {
        Cut cut = cut_of(p, i);
        for (Py_ssize_t f = 0; f < s->filters; f++)
            for (Py_ssize_t v = 0; v < cut.runs * cut.vectors; v++)
                for (Py_ssize_t lane = 0; lane < VEC; lane++, to++) {
                    Py_ssize_t at = (cut.vector + v % cut.vectors) * VEC + lane; /* in the run */
                    Py_ssize_t place = (cut.run + v / cut.vectors) * s->size + at / p->w.channels;
                    Py_ssize_t k = place * s->channels + channel + at % p->w.channels;
                    *to = at < p->w.run ? row(weight, k)[f] : 0.0f;
                }
    }
}

/* List, for each window of an image, the filters that were largest there, and their numbers. */
static void list_filters(const Patches *p, Py_ssize_t filters, const float *delta, const float *places)
{
    Index *at = p->at, *ends = p->ends;
    float *by = p->by;
    Py_ssize_t stride = p->columns * filters;
    for (Py_ssize_t k = 0; k < p->rows * p->columns * p->block; k++) ends[k] = (Index)(k * p->most);
    for (Py_ssize_t i = 0; i < p->rows; i++, delta += stride, places += stride) {
        const Index *found = p->found;
        const float *read = p->read;
        read_row(p, filters, delta, places, (Part){0, filters});
        for (Py_ssize_t j = 0; j < p->columns; j++, ends += p->block)
            for (Index f = 0; f < filters; f++, found++, read++) {
                Index to = ends[*found];
                at[to] = f;
                by[to] = *read;
                ends[*found] = to + (*read != 0.0f);
            }
    }
}

static void back_of_largest(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *delta = m, *places = m + 1, *weight = m + 2, *out = m + 3;
    Patches p;
    open_patches(&p, s, part.count, s->filters, 1, m[4].data);
    start_patches(&p, s);
    turn_filters(&p, s, weight, part.first);
    for (Py_ssize_t e = 0; e < delta->rows; e++) {
        memset(p.images, 0, (size_t)p.w.image * sizeof *p.images);
        list_filters(&p, s->filters, row(delta, e), row(places, e));
        add_filters(&p, s->filters, s->pool);
        unpad_image(s, &p.w, p.images, row(out, e), part.first);
    }
}

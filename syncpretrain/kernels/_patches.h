/* The ways back from maxima. Included by _native.c alone.
 *
 * Of a block only one number has a derivative, for each filter another. So the gradient of a filter is the
 * sum of the patches of images that were largest, each times its number; and what goes back to a window is
 * the sum of the filters that were largest there. That is a quarter of a product's work, or less.
 */
/* Windows as vectors: the vectors of a run lie side by side, the last one filled with what comes behind it. */
typedef struct {
    Windows w;
    Py_ssize_t vectors, padded;          /* of a run; floats of a window of vectors */
    Py_ssize_t cuts;
    Py_ssize_t block, rows, columns;     /* places of a block; blocks of an image */
    Py_ssize_t at_once;                  /* images */
    float *images, *sums;                /* padded images; filters or their gradients */
    Lists lists;                         /* of patches, for each filter; or of filters, for each window */
    Index *shifts;                       /* of the places of a block, in an image */
    Index *found;                        /* places of a row of blocks */
    float *read;                         /* and their numbers */
} Patches;

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
    p->lists.most = is_back ? filters : p->at_once * blocks;
    Py_ssize_t lists = is_back ? blocks * p->block : filters;
    p->images = take(&room, p->at_once * w.image);
    p->sums = take(&room, filters * p->padded);
    p->lists.ends = (Index *)take(&room, lists);
    p->lists.at = (Index *)take(&room, lists * p->lists.most);
    p->lists.by = take(&room, lists * p->lists.most);
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
    Index *at = p->lists.at, *ends = p->lists.ends;
    float *by = p->lists.by;
    Py_ssize_t most = p->lists.most, step = s->pool * p->w.channels, stride = p->columns * s->filters;
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
        for (Py_ssize_t i = 0; i < p.cuts; i++) {
            Cut cut = cut_of(&p, i);
            add_patches(&p.lists, part.count, cut, p.images + cut.run * p.w.line + cut.vector * VEC,
                        p.w.line, p.sums + (cut.run * p.vectors + cut.vector) * VEC, p.padded);
        }
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
    Py_ssize_t some = p->w.channels, filters = s->own.count;
    float *to = p->sums;
    for (Py_ssize_t i = 0; i < p->cuts; i++) {
        Cut cut = cut_of(p, i);
        Py_ssize_t first = cut.vector * VEC, width = cut.vectors * VEC, size = cut.runs * width;
        memset(to, 0, (size_t)(filters * size) * sizeof *to);
        for (Py_ssize_t r = 0; r < cut.runs; r++)
            for (Py_ssize_t at = first; at < first + width && at < p->w.run; at++) {
                Py_ssize_t place = (cut.run + r) * s->size + at / some;
                const float *from = row(weight, place * s->channels + channel + at % some) + s->own.first;
                float *lane = to + r * width + at - first;
                for (Py_ssize_t f = 0; f < filters; f++) lane[f * size] = from[f];
            }
        to += filters * size;
    }
}

/* List, for each window of an image, the filters that were largest there, and their numbers. */
static void list_filters(const Patches *p, const Shape *s, const float *delta, const float *places)
{
    Index *at = p->lists.at, *ends = p->lists.ends;
    float *by = p->lists.by;
    Py_ssize_t stride = p->columns * s->filters;
    for (Py_ssize_t k = 0; k < p->rows * p->columns * p->block; k++) ends[k] = (Index)(k * p->lists.most);
    for (Py_ssize_t i = 0; i < p->rows; i++, delta += stride, places += stride) {
        const Index *found = p->found;
        const float *read = p->read;
        read_row(p, s->filters, delta, places, s->own);
        for (Py_ssize_t j = 0; j < p->columns; j++, ends += p->block)
            for (Index f = 0; f < s->own.count; f++, found++, read++) {
                Index to = ends[*found];
                at[to] = f;
                by[to] = *read;
                ends[*found] = to + (*read != 0.0f);
            }
    }
}

/* Add to the windows of an image the filters of their lists.
 *
 * One window below the other, for a sum that overlaps the one before it would wait for it. */
static void add_listed_filters(const Patches *p, Py_ssize_t filters, Py_ssize_t pool)
{
    const float *part = p->sums;
    for (Py_ssize_t i = 0; i < p->cuts; i++) {
        Cut cut = cut_of(p, i);
        float *image = p->images + cut.run * p->w.line + cut.vector * VEC;
        Py_ssize_t lists = p->columns * p->block; /* of a row of blocks */
        for (Py_ssize_t j = 0; j < lists; j++) {
            Py_ssize_t at = j / p->block * pool * p->w.channels + p->shifts[j % p->block];
            add_filters(&p->lists, j, lists, p->rows, cut, part, p->w.line, image + at, pool * p->w.line);
        }
        part += filters * cut.runs * cut.vectors * VEC;
    }
}

static void back_of_largest(const Shape *s, const Matrix *m, Part part)
{
    const Matrix *delta = m, *places = m + 1, *weight = m + 2, *out = m + 3;
    Patches p;
    open_patches(&p, s, part.count, s->own.count, 1, m[4].data);
    start_patches(&p, s);
    turn_filters(&p, s, weight, part.first);
    for (Py_ssize_t e = 0; e < delta->rows; e++) {
        memset(p.images, 0, (size_t)p.w.image * sizeof *p.images);
        list_filters(&p, s, row(delta, e), row(places, e));
        add_listed_filters(&p, s->own.count, s->pool);
        unpad_image(s, &p.w, p.images, row(out, e), s->channel + part.first);
    }
}

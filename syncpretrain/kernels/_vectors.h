/* Sums of vectors, each times a number, with the widest vectors that the processor has.
 *
 * The sums stay in registers, so they are written for each width: a compiler that splits wider vectors
 * than there are keeps them in memory, which takes ten times as long. Included by _native.c alone.
 */
enum {
    TILE = 7,                        /* vectors of patches or filters that are summed at once */
    TILE_ROWS = 6, TILE_VECTORS = 4, /* vectors of products, where there are many registers */
};

/* Numbers that lie at steps from each other, in rows at longer steps. */
typedef struct {
    Py_ssize_t rows, line, count, step;
} Walk;

/* Windows as vectors are summed in cuts: some runs of few vectors, or some vectors of a long run. */
typedef struct {
    Py_ssize_t run, runs, vector, vectors; /* the first and how many */
} Cut;

/* Lists of numbers and what they multiply. Each has room for as many, and ends somewhere. */
typedef struct {
    Py_ssize_t most;
    Index *at, *ends;
    float *by;
} Lists;

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 32")
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

#define OF_WIDTH(name) name##_4
#define WIDTH 4
#define TARGETED
#include "_tiles.h"
#undef OF_WIDTH
#undef WIDTH
#undef TARGETED

#if defined(__x86_64__)
#define OF_WIDTH(name) name##_8
#define WIDTH 8
#define TARGETED AVX2
#include "_tiles.h"
#undef OF_WIDTH
#undef WIDTH
#undef TARGETED

#define OF_WIDTH(name) name##_16
#define WIDTH 16
#define TARGETED AVX512
#include "_tiles.h"
#undef OF_WIDTH
#undef WIDTH
#undef TARGETED
#endif

#if !defined(__clang__)
#pragma GCC pop_options
#endif

#if defined(__x86_64__)
#define WITH_WIDEST(name, ...)                                                                      \
    switch (widest()) {                                                                             \
    case 16: name##_16(__VA_ARGS__); break;                                                         \
    case 8: name##_8(__VA_ARGS__); break;                                                           \
    default: name##_4(__VA_ARGS__);                                                                 \
    }
#else
#define WITH_WIDEST(name, ...) name##_4(__VA_ARGS__);
#endif

/* Add to the vectors at each of n places the numbers of a walk, each times the next vectors of factors. */
static void add_products(const float *const *from, Walk walk, const float *factors, float *const *to,
                         Py_ssize_t n, Py_ssize_t vectors)
{
    WITH_WIDEST(add_products, from, walk, factors, to, n, vectors)
}

/* Add to the sums of a cut, `padded` floats from list to list, the patches of images in the lists. */
static void add_patches(const Lists *l, Py_ssize_t lists, Cut cut, const float *images, ptrdiff_t line,
                        float *sums, Py_ssize_t padded)
{
    WITH_WIDEST(add_patches, l, lists, cut, images, line, sums, padded)
}

/* Add to windows of an image, `down` floats from each other, the cuts of filters in every `step`th list
 * from `first` on. */
static void add_filters(const Lists *l, Py_ssize_t first, Py_ssize_t step, Py_ssize_t rows, Cut cut,
                        const float *filters, ptrdiff_t line, float *image, Py_ssize_t down)
{
    WITH_WIDEST(add_filters, l, first, step, rows, cut, filters, line, image, down)
}

/* The compiled kernels with emulated tiles, and their product of packed factors by itself. */
#define TILE_INSTRUCTIONS "emulatedtiles.h"
#include "_native.c"

void add_packed_product(const Pair *left, const Pair *right, Py_ssize_t rows, Py_ssize_t pairs,
                        Py_ssize_t columns, float *sums, Py_ssize_t stride, int begins)
{
    add_product_tiles(left, NULL, right, rows, pairs, columns, sums, stride, begins);
}

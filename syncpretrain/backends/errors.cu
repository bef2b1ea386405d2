// Errors of outputs against targets, and derivatives of losses. What is here on top is that of
// kernels.cu, behind which this is compiled.

#define SUM_THREADS 256

// The sum over a block, the same on every thread; no atomics, so that it is the same every time.
__device__ static double block_sum(double mine, double *share)
{
    uint32 own = threadIdx.y * blockDim.x + threadIdx.x;
    share[own] = mine;
    __syncthreads();
    for (uint32 half = SUM_THREADS / 2; half; half /= 2) {
        if (own < half) share[own] += share[own + half];
        __syncthreads();
    }
    return share[0];
}

// The sum over all threads of a launch, into total. Each block leaves its own in partial, and the
// one that finishes last adds these up in their order, whichever it is: so the sum is the same
// every time. finished counts the blocks; it is 0 before, and again afterwards.
__device__ static void add_up(double mine, double *partial, uint32 *finished, double *total)
{
    __shared__ double share[SUM_THREADS];
    __shared__ bool is_last;
    uint32 own = threadIdx.y * blockDim.x + threadIdx.x;
    double sum = block_sum(mine, share);
    if (own == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();  // the sum is there before it counts
        is_last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    const volatile double *sums = partial;  // not what this multiprocessor may remember
    sum = 0.0;
    for (uint32 i = own; i < gridDim.x; i += SUM_THREADS) sum += sums[i];
    sum = block_sum(sum, share);
    if (own == 0) *total = sum;
}

// out becomes y - x, and total the sum of its squares.
extern "C" __global__ void squared_error(
    const float *x, long long ldx, const float *y, long long ldy, float *out, long long ldo,
    long long rows, long long cols, double *partial, uint32 *finished, double *total)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    double sum = 0.0;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float d = y[place(i, width, ldy)] - x[place(i, width, ldx)];
        out[place(i, width, ldo)] = d;
        sum += (double)d * d;
    }
    add_up(sum, partial, finished, total);
}

// The same where y are inputs without their bias, which become means.
extern "C" __global__ void means_and_error(
    float *y, long long ldy, const float *bias, const float *x, long long ldx,
    float *out, long long ldo, long long rows, long long cols, long long units,
    double *partial, uint32 *finished, double *total)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    double sum = 0.0;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float *input = y + place(i, width, ldy);
        float mean = mean_of(*input + bias[i % width], units);
        float d = mean - x[place(i, width, ldx)];
        *input = mean;
        out[place(i, width, ldo)] = d;
        sum += (double)d * d;
    }
    add_up(sum, partial, finished, total);
}

// out becomes (y - x) * scale * slope of the units at y * share, sums its sum over the rows, and
// total that of the squares of y - x. A block takes 32 columns at a time.
extern "C" __global__ void output_delta(
    const float *x, long long ldx, const float *y, long long ldy, float *out, long long ldo,
    long long rows, long long cols, long long units, float scale, float share, float *sums,
    double *partial, uint32 *finished, double *total)
{
    __shared__ float columns[TILE_ROWS][TILE_COLUMNS];
    double squared = 0.0;
    for (uint32 left = blockIdx.x * TILE_COLUMNS; left < cols; left += gridDim.x * TILE_COLUMNS) {
        uint32 j = left + threadIdx.x;
        float sum = 0.0f;
        for (uint32 i = threadIdx.y; i < rows && j < cols; i += TILE_ROWS) {
            float mean = y[(uint64)i * (uint64)ldy + j];
            float d = mean - x[(uint64)i * (uint64)ldx + j];
            squared += (double)d * d;
            d = times_slope(d * scale, mean, units) * share;
            out[(uint64)i * (uint64)ldo + j] = d;
            sum += d;
        }
        sum = column_sum(sum, columns);
        if (threadIdx.y == 0 && j < cols) sums[j] = sum;
        __syncthreads();  // all have read the columns before they are written again
    }
    add_up(squared, partial, finished, total);
}

// delta becomes its product with the slope of the units at a, and sums its sum over the rows.
extern "C" __global__ void derivative_and_sums(
    float *delta, long long ldd, const float *a, long long lda,
    long long rows, long long cols, long long units, float *sums)
{
    __shared__ float columns[TILE_ROWS][TILE_COLUMNS];
    uint32 j = blockIdx.x * TILE_COLUMNS + threadIdx.x;
    float sum = 0.0f;
    for (uint32 i = threadIdx.y; i < rows && j < cols; i += TILE_ROWS) {
        float *d = delta + (uint64)i * (uint64)ldd + j;
        *d = times_slope(*d, a[(uint64)i * (uint64)lda + j], units);
        sum += *d;
    }
    sum = column_sum(sum, columns);
    if (threadIdx.y == 0 && j < cols) sums[j] = sum;
}

// Where the largest number of a row is, or its first NaN; the first one of several.
__device__ static uint32 largest(const float *row, long long cols)
{
    uint32 best = 0;
    for (uint32 j = 1; j < cols && row[best] == row[best]; j++)
        if (!(row[j] <= row[best])) best = j;
    return best;
}

// How many rows of y have their largest number elsewhere than those of x.
extern "C" __global__ void wrong(
    const float *x, long long ldx, const float *y, long long ldy, long long rows, long long cols,
    double *partial, uint32 *finished, double *total)
{
    double count = 0.0;
    for (uint32 i = FIRST; i < rows; i += STRIDE)
        count += largest(x + (uint64)i * (uint64)ldx, cols)
                 != largest(y + (uint64)i * (uint64)ldy, cols);
    add_up(count, partial, finished, total);
}

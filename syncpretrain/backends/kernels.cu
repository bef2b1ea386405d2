// The fused equations on the GPU; the same as those of syncpretrain/kernels, which say what they
// mean. CuPy compiles this file at first use. The tests compile it for the CPU too, with a header
// that stands in for CUDA: only what that header knows may be used here.
//
// A matrix is a pointer to its first element and the number of elements from row to row (ld...).
// Counts are long long, which is what CuPy makes of a Python int; a matrix has fewer than 2^31
// elements, so that flat indices are 32 bits. Products and sums are not contracted to fused ones
// (--fmad=false): what has no exp(), no tanh() and no long sum in it is NumPy's result bit for bit,
// but for numbers below 2^-126: CuPy compiles with -ftz=true, which makes them 0.

typedef unsigned char uint8;
typedef unsigned int uint32;
typedef unsigned long long uint64;

// The kinds of units that have a form here, by their names in syncpretrain/units/kinds.py. Python reads
// the numbers from these lines. A kind that a switch below has forgotten becomes NaN.
#define UNITS_BERNOULLI 0
#define UNITS_GAUSSIAN 1
#define UNITS_RELU 2
#define UNITS_TANH 3
#define UNKNOWN nanf("")

// Of a flat launch: the first index of this thread, and how far to the next.
#define FIRST (blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE (gridDim.x * blockDim.x)

__device__ static uint64 place(uint32 i, uint32 cols, long long ld)
{
    return (uint64)(i / cols) * (uint64)ld + i % cols;
}

__device__ static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));  // exp(-x) = inf gives the right limit, 0
}

__device__ static float mean_of(float x, long long units)
{
    switch (units) {
    case UNITS_BERNOULLI: return sigmoid(x);
    case UNITS_GAUSSIAN: return x;
    case UNITS_RELU: return x < 0.0f ? 0.0f : x;  // a NaN stays one
    case UNITS_TANH: return tanhf(x);
    }
    return UNKNOWN;
}

// The product of d and the derivative at the mean a.
__device__ static float times_slope(float d, float a, long long units)
{
    switch (units) {
    case UNITS_BERNOULLI: return d * a * (1.0f - a);
    case UNITS_GAUSSIAN: return d;
    case UNITS_RELU: return d * (a > 0.0f ? 1.0f : a);  // a rectified mean is positive, 0 or NaN
    case UNITS_TANH: return d * (1.0f - a * a);
    }
    return UNKNOWN;
}

// The state of a unit with input x, from standard normal noise z.
__device__ static float state_of(float x, float z, long long units)
{
    switch (units) {
    case UNITS_GAUSSIAN: return x + z;
    case UNITS_RELU: return mean_of(x + z * sqrtf(sigmoid(x)), units);
    }
    return UNKNOWN;
}

// ---------------------------------------------------------------- rounded factors
// The bits of x rounded to the nearest bfloat16, of two as near to the even one; below 2^-126 it is
// 0. As `rounded` in syncpretrain/kernels/precision.py; the low half is 0.
__device__ static uint32 nearest_bfloat16(float x)
{
    uint32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (bits | 0x00400000u) & 0xffff0000u;  // a NaN stays one
    if (size < 0x00800000u) return bits & 0x80000000u;
    return (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
}

extern "C" __global__ void round_factor(
    const float *x, long long ldx, float *out, long long rows, long long cols)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < n; i += STRIDE)
        out[i] = __uint_as_float(nearest_bfloat16(x[place(i, width, ldx)]));
}

// ---------------------------------------------------------------- random numbers
// Philox4x64-10 (Salmon et al. 2011). Block number b of an address is the cipher of its counter
// plus b + 1: NumPy counts up before its first block. Each of the 4 words gives two numbers, its
// low half first. Of the counter only the lowest word c0 moves, and 2^64 blocks are never drawn.

struct Address {
    uint64 key0, key1, c0, c1, c2, c3;
};

// A recorded graph draws at other addresses each time, and reads other rows: now[0] and now[1] are
// how far its step and epoch are from the recorded ones, now[2] is where the rows begin, or 0 for
// where they were. Outside of a recording now is null.
__device__ static struct Address moved(struct Address at, const uint64 *now)
{
    if (now) {
        at.c1 += now[0];
        at.c2 += now[1];
    }
    return at;
}

extern "C" __global__ void set_now(uint64 *now, uint64 step, uint64 epoch, uint64 x)
{
    if (FIRST) return;
    now[0] = step;
    now[1] = epoch;
    now[2] = x;
}

__device__ static void philox(struct Address at, uint64 block, uint64 words[4])
{
    uint64 k0 = at.key0, k1 = at.key1;
    uint64 c0 = at.c0 + block + 1, c1 = at.c1, c2 = at.c2, c3 = at.c3;
    for (int round = 0; round < 10; round++) {
        uint64 high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), low0 = 0xD2E7470EE14C6C93ull * c0;
        uint64 high1 = __umul64hi(0xCA5A826395121157ull, c2), low1 = 0xCA5A826395121157ull * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

// Number k in 0..7 of a block, uniform in [0, 1) with 24 bits, as NumPy's float32 draws.
__device__ static float uniform_of(const uint64 *words, int k)
{
    uint32 half = (uint32)(words[k >> 1] >> (32 * (k & 1)));
    return (half >> 8) * (1.0f / 16777216.0f);
}

// Numbers 2 k and 2 k + 1 of a block, standard normal (Box and Muller 1958): those of a device, for
// NumPy's take a varying number of words, one after another.
__device__ static void normals_of(uint64 word, float z[2])
{
    float radius = sqrtf(-2.0f * logf(((uint32)word + 0.5f) * (1.0f / 4294967296.0f)));
    float halfturns = (uint32)(word >> 32) * (1.0f / 2147483648.0f);
    z[0] = radius * cospif(halfturns);
    z[1] = radius * sinpif(halfturns);
}

// Fill with the numbers skip, skip + 1, ... of an address. A thread makes a block of 8.
extern "C" __global__ void fill_uniform(
    float *out, long long ldo, long long rows, long long cols, uint64 skip,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    struct Address at = moved({key0, key1, c0, c1, c2, c3}, now);
    uint32 n = (uint32)(rows * cols);
    uint64 first = skip / 8, blocks = (skip + n + 7) / 8 - first;
    for (uint64 b = FIRST; b < blocks; b += STRIDE) {
        uint64 words[4];
        philox(at, first + b, words);
        for (int k = 0; k < 8; k++) {
            uint64 number = (first + b) * 8 + k;
            if (number < skip || number - skip >= n) continue;
            out[place((uint32)(number - skip), (uint32)cols, ldo)] = uniform_of(words, k);
        }
    }
}

// The same, of normal numbers.
extern "C" __global__ void fill_normal(
    float *out, long long ldo, long long rows, long long cols, uint64 skip,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    struct Address at = moved({key0, key1, c0, c1, c2, c3}, now);
    uint32 n = (uint32)(rows * cols);
    uint64 first = skip / 8, blocks = (skip + n + 7) / 8 - first;
    for (uint64 b = FIRST; b < blocks; b += STRIDE) {
        uint64 words[4];
        philox(at, first + b, words);
        float z[8];
#pragma unroll  // so that words and numbers are in registers
        for (int k = 0; k < 4; k++) normals_of(words[k], z + 2 * k);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            uint64 number = (first + b) * 8 + k;
            if (number < skip || number - skip >= n) continue;
            out[place((uint32)(number - skip), (uint32)cols, ldo)] = z[k];
        }
    }
}

// Binary units: x becomes their means, out their states. A thread makes the states of 4 units,
// from half a block of numbers: with 8 a thread there are fewer blocks than multiprocessors.
extern "C" __global__ void draw_bernoulli(
    float *x, long long ldx, const float *bias, float *out, long long ldo,
    long long rows, long long cols,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    struct Address at = moved({key0, key1, c0, c1, c2, c3}, now);
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 part = FIRST; part < (n + 3) / 4; part += STRIDE) {
        uint64 words[4];
        philox(at, part / 2, words);
        bool is_second = part % 2;
        uint64 own[2] = {is_second ? words[2] : words[0], is_second ? words[3] : words[1]};
#pragma unroll  // so that the words are in registers
        for (int k = 0; k < 4; k++) {
            uint32 i = part * 4 + k;
            if (i >= n) break;
            float *input = x + place(i, width, ldx);
            float mean = sigmoid(*input + bias[i % width]);
            *input = mean;
            out[place(i, width, ldo)] = uniform_of(own, k) < mean ? 1.0f : 0.0f;
        }
    }
}

// Other units: as above, by the normal numbers of an address.
extern "C" __global__ void draw_noisy(
    float *x, long long ldx, const float *bias, float *out, long long ldo,
    long long rows, long long cols, long long units,
    uint64 key0, uint64 key1, uint64 c0, uint64 c1, uint64 c2, uint64 c3, const uint64 *now)
{
    struct Address at = moved({key0, key1, c0, c1, c2, c3}, now);
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 part = FIRST; part < (n + 3) / 4; part += STRIDE) {
        uint64 words[4];
        philox(at, part / 2, words);
        bool is_second = part % 2;
        float z[4];
        normals_of(is_second ? words[2] : words[0], z);
        normals_of(is_second ? words[3] : words[1], z + 2);
#pragma unroll  // so that the numbers are in registers
        for (int k = 0; k < 4; k++) {
            uint32 i = part * 4 + k;
            if (i >= n) break;
            float *mean = x + place(i, width, ldx);
            float input = *mean + bias[i % width];
            *mean = mean_of(input, units);
            out[place(i, width, ldo)] = state_of(input, z[k], units);
        }
    }
}

// ---------------------------------------------------------------- units
extern "C" __global__ void unit_means(
    float *x, long long ldx, const float *bias, long long rows, long long cols, long long units)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float *input = x + place(i, width, ldx);
        *input = mean_of(*input + bias[i % width], units);
    }
}

#define SOFTMAX_THREADS 128
#define LOWEST -3.402823466e+38f  // NVRTC knows no INFINITY

// A block makes one row after another; its threads share the row's largest input and its sum.
extern "C" __global__ void softmax_means(
    float *x, long long ldx, const float *bias, long long rows, long long cols)
{
    __shared__ float share[SOFTMAX_THREADS];
    for (uint32 row = blockIdx.x; row < rows; row += gridDim.x) {
        float *r = x + (uint64)row * (uint64)ldx;
        float most = LOWEST, sum = 0.0f;
        for (uint32 j = threadIdx.x; j < cols; j += SOFTMAX_THREADS) {
            r[j] += bias[j];
            most = fmaxf(most, r[j]);  // which passes by a NaN: the sum will find it
        }
        share[threadIdx.x] = most;
        __syncthreads();
        for (uint32 half = SOFTMAX_THREADS / 2; half; half /= 2) {
            if (threadIdx.x < half)
                share[threadIdx.x] = fmaxf(share[threadIdx.x], share[threadIdx.x + half]);
            __syncthreads();
        }
        most = share[0];
        __syncthreads();  // all have read it before it is written again
        for (uint32 j = threadIdx.x; j < cols; j += SOFTMAX_THREADS) {
            r[j] = expf(r[j] - most);
            sum += r[j];
        }
        share[threadIdx.x] = sum;
        __syncthreads();
        for (uint32 half = SOFTMAX_THREADS / 2; half; half /= 2) {
            if (threadIdx.x < half) share[threadIdx.x] += share[threadIdx.x + half];
            __syncthreads();
        }
        sum = share[0];
        __syncthreads();
        for (uint32 j = threadIdx.x; j < cols; j += SOFTMAX_THREADS) r[j] = r[j] / sum;
    }
}

extern "C" __global__ void times_derivative(
    float *delta, long long ldd, const float *a, long long lda,
    long long rows, long long cols, long long units)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float *d = delta + place(i, width, ldd);
        *d = times_slope(*d, a[place(i, width, lda)], units);
    }
}

// ---------------------------------------------------------------- contrastive divergence
#define TILE_COLUMNS 32
#define TILE_ROWS 8

// The sum of one column of a tile, from what each of its rows summed up; every thread calls it.
__device__ static float column_sum(float mine, float (*share)[TILE_COLUMNS])
{
    share[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    float sum = 0.0f;
    for (int row = 0; row < TILE_ROWS; row++) sum += share[row][threadIdx.x];
    return sum;
}

// v of 2 n rows becomes [v0; -v1] * scale and da its sum; db is (sum h0 - sum h1) / examples. With
// a bias, h1 are inputs without it, which become means. The first blocks take 32 columns of v each,
// the rest 32 columns of h.
__device__ static void differences(
    float *v, long long ldv, long long visible, float *h, long long ldh, long long hidden,
    const float *bias, long long units, float *da, float *db, long long n, float scale,
    float examples)
{
    __shared__ float share[TILE_ROWS][TILE_COLUMNS];
    uint32 of_v = (uint32)((visible + TILE_COLUMNS - 1) / TILE_COLUMNS);
    bool is_v = blockIdx.x < of_v;
    uint32 j = (is_v ? blockIdx.x : blockIdx.x - of_v) * TILE_COLUMNS + threadIdx.x;
    float sum = 0.0f;
    if (is_v && j < visible) {
        for (uint32 i = threadIdx.y; i < 2 * n; i += TILE_ROWS) {
            float *value = v + (uint64)i * (uint64)ldv + j;
            *value = i < n ? *value * scale : -(*value * scale);
            sum += *value;
        }
    }
    if (!is_v && j < hidden) {
        for (uint32 i = threadIdx.y; i < 2 * n; i += TILE_ROWS) {
            float *value = h + (uint64)i * (uint64)ldh + j;
            if (bias && i >= n) *value = mean_of(*value + bias[j], units);
            sum += i < n ? *value : -*value;
        }
    }
    sum = column_sum(sum, share);
    if (threadIdx.y == 0 && is_v && j < visible) da[j] = sum;
    if (threadIdx.y == 0 && !is_v && j < hidden) db[j] = sum / examples;
}

extern "C" __global__ void phase_differences(
    float *v, long long ldv, long long visible, float *h, long long ldh, long long hidden,
    float *da, float *db, long long n, float scale, float examples)
{
    differences(v, ldv, visible, h, ldh, hidden, 0, 0, da, db, n, scale, examples);
}

extern "C" __global__ void means_and_differences(
    float *v, long long ldv, long long visible, float *h, long long ldh, long long hidden,
    const float *bias, long long units, float *da, float *db, long long n, float scale,
    float examples)
{
    differences(v, ldv, visible, h, ldh, hidden, bias, units, da, db, n, scale, examples);
}

// What steps need that differs from one to the next, such as rates: up to 16 numbers of a table.
extern "C" __global__ void set_numbers(
    float *table, long long n, float x0, float x1, float x2, float x3, float x4, float x5, float x6,
    float x7, float x8, float x9, float x10, float x11, float x12, float x13, float x14, float x15)
{
    const float given[] = {x0, x1, x2,  x3,  x4,  x5,  x6,  x7,
                           x8, x9, x10, x11, x12, x13, x14, x15};
    if (FIRST) return;
#pragma unroll  // so that the numbers are in registers
    for (int i = 0; i < 16; i++)
        if (i < n) table[i] = given[i];
}

// Add up to 16 numbers to the total, or from 0 on: those of some steps. Null ones are left out.
extern "C" __global__ void sum_errors(
    double *total, long long adds, const double *x0, const double *x1, const double *x2,
    const double *x3, const double *x4, const double *x5, const double *x6, const double *x7,
    const double *x8, const double *x9, const double *x10, const double *x11, const double *x12,
    const double *x13, const double *x14, const double *x15)
{
    if (FIRST) return;
    const double *given[] = {x0, x1, x2,  x3,  x4,  x5,  x6,  x7,
                             x8, x9, x10, x11, x12, x13, x14, x15};
    double sum = adds ? *total : 0.0;
#pragma unroll  // so that the pointers are in registers
    for (int i = 0; i < 16; i++)
        if (given[i]) sum += *given[i];
    *total = sum;
}

// ---------------------------------------------------------------- steps
__device__ static void ascend(
    float *p, float g, float *v, float momentum, float rate, float decay, float l1)
{
    float now = *v * momentum + g * rate;
    if (decay != 0.0f) now = now - *p * decay;
    if (l1 != 0.0f) now = now - (*p > 0.0f ? l1 : *p < 0.0f ? -l1 : *p * l1);
    *v = now;
    *p = *p + now;
}

extern "C" __global__ void momentum_step(
    float *parameter, long long ldp, const float *gradient, long long ldg,
    float *velocity, long long ldv, long long rows, long long cols,
    float momentum, float rate, float decay, float l1)
{
    uint32 n = (uint32)(rows * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        float g = gradient[place(i, width, ldg)];
        float *p = parameter + place(i, width, ldp), *v = velocity + place(i, width, ldv);
        ascend(p, g, v, momentum, rate, decay, l1);
    }
}

// Of flat vectors, whose first `weights` numbers decay.
extern "C" __global__ void momentum_steps(
    float *p, const float *g, float *v, long long n, long long weights,
    float momentum, float rate, float decay, float l1)
{
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        bool decays = i < weights;
        ascend(p + i, g[i], v + i, momentum, rate, decays ? decay : 0.0f, decays ? l1 : 0.0f);
    }
}

__device__ static void descend(
    float *p, float g, float *v, float rate, float momentum, long long nesterov)
{
    float step = g * rate;
    if (momentum == 0.0f) {  // without velocities
        *p = *p - step;
        return;
    }
    *v = *v * momentum - step;
    *p = nesterov ? (*p - step) + *v * momentum : *p + *v;
}

extern "C" __global__ void sgd_step(
    float *p, const float *g, float *v, long long n, float rate, float momentum, long long nesterov,
    const float *numbers)
{
    if (numbers) rate = numbers[0];
    for (uint32 i = FIRST; i < n; i += STRIDE)
        descend(p + i, g[i], v + i, rate, momentum, nesterov);
}

// Multiply weights before they move. The numbers of a recorded step are the rate or size, this factor
// and Adam's floor.
extern "C" __global__ void shrink(float *p, long long n, float factor, const float *numbers)
{
    if (numbers) factor = numbers[1];
    for (uint32 i = FIRST; i < n; i += STRIDE) p[i] = p[i] * factor;
}

// The moments as plain decaying sums: size and floor hold their scale and the bias correction.
__device__ static void adapt(
    float *p, float g, float *first, float *second, float beta1, float beta2, float size,
    float floor)
{
    *first = *first * beta1 + g;
    *second = *second * beta2 + g * g;
    *p = *p - *first / (sqrtf(*second) + floor) * size;
}

extern "C" __global__ void adam_step(
    float *p, const float *g, float *first, float *second, long long n,
    float beta1, float beta2, float size, float floor, const float *numbers)
{
    if (numbers) {
        size = numbers[0];
        floor = numbers[2];
    }
    for (uint32 i = FIRST; i < n; i += STRIDE)
        adapt(p + i, g[i], first + i, second + i, beta1, beta2, size, floor);
}

// ---------------------------------------------------------------- rows
// Row numbers outside are those of the nearest row, as NumPy's mode="clip".
extern "C" __global__ void gather_rows(
    const float *x, long long ldx, long long last, const long long *rows,
    float *out, long long ldo, long long n, long long cols, const uint64 *now)
{
    if (now && now[2]) x = (const float *)now[2];
    uint32 count = (uint32)(n * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < count; i += STRIDE) {
        long long row = rows[i / width];
        row = row < 0 ? 0 : row > last ? last : row;
        out[place(i, width, ldo)] = x[(uint64)row * (uint64)ldx + i % width];
    }
}

// Rows of bytes, whose values are divided by 255: correctly rounded, as NumPy's quotients are.
#define LARGEST_BYTE 255.0f

extern "C" __global__ void gather_bytes(
    const uint8 *x, long long last, const long long *rows,
    float *out, long long ldo, long long n, long long cols, const uint64 *now)
{
    if (now && now[2]) x = (const uint8 *)now[2];
    uint32 count = (uint32)(n * cols), width = (uint32)cols;
    for (uint32 i = FIRST; i < count; i += STRIDE) {
        long long row = rows[i / width];
        row = row < 0 ? 0 : row > last ? last : row;
        out[place(i, width, ldo)] = x[(uint64)row * width + i % width] / LARGEST_BYTE;
    }
}

extern "C" __global__ void values_of_bytes(const uint8 *x, float *out, long long n)
{
    for (uint64 i = FIRST; i < n; i += STRIDE) out[i] = x[i] / LARGEST_BYTE;
}

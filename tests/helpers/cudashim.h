// Stands in for CUDA, so that a kernel's source runs on the CPU. The threads of a block are fibers:
// each runs until __syncthreads(), and when all wait there, they go on; those of a warp meet for
// each product of tensor cores. A kernel in which some do not come to a barrier that others wait at
// is stopped. Blocks run one after another, and so do the
// threads of kernels without barriers, which need no fibers: these take most of the time.
// It is compiled with each source; templates of C++'s library would take most of that time.
#undef _FORTIFY_SOURCE  // with it, longjmp refuses to go to another stack
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct dim3 {
    unsigned int x, y, z;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static

static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

// glibc has them or not.
#define cospif(halfturns) ((float)cos(M_PI * (halfturns)))
#define sinpif(halfturns) ((float)sin(M_PI * (halfturns)))

// Blocks run one after another.
static void __threadfence() {}

static unsigned int atomicInc(unsigned int *place, unsigned int most)
{
    unsigned int before = *place;
    *place = before >= most ? 0 : before + 1;
    return before;
}

static const size_t STACK = 32768;
static const size_t WARP = 32;
static const size_t THREADS = 1024;  // of a block, at most

// A fiber begins with setcontext and goes on with longjmp, which, unlike setcontext, calls nothing
// of the system. It runs one kernel after another.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun;
    char stack[STACK];
};

static jmp_buf scheduler;
static Fiber *fibers[THREADS];
static size_t usable = 0;  // fibers that are made, and not in the middle of a kernel
static char done[THREADS];
static char meets_warp[THREADS];  // at a barrier of its warp, not of the block
static size_t running;
static bool has_fibers = false;
static void (*kernel)(const void *);
static const void *given;  // to the kernel
static int backwards = 0;  // the order of threads and blocks: a race shows as another result

static void leave()
{
    if (!_setjmp(fibers[running]->place)) _longjmp(scheduler, 1);
}

static void enter(Fiber &next)
{
    if (_setjmp(scheduler)) return;
    if (next.begun) _longjmp(next.place, 1);
    next.begun = true;
    setcontext(&next.context);
}

static void __syncthreads()
{
    if (!has_fibers) abort();  // said to have no barriers
    leave();
}

static void __syncwarp()
{
    if (!has_fibers) abort();
    meets_warp[running] = 1;
    leave();
}

// ---------------------------------------------------------------- copies to shared memory
// They are done as late as may be: when their thread waits for them.
struct Copy {
    float *to;
    const float *from;
    int bytes, size;
    size_t group;
};
struct Copies {
    Copy *waiting;
    size_t count, room, ended;  // ended: how many groups are
};
static Copies copies[THREADS];
static int misaligned = 0;

static void copy_later(float *to, const float *from, int bytes, int size)
{
    if ((size_t)to % size || (size_t)from % size || bytes < 0 || bytes > size) misaligned = 1;
    Copies &own = copies[running];
    if (own.count == own.room) {
        own.room = 2 * own.room + 8;
        own.waiting = (Copy *)realloc(own.waiting, own.room * sizeof(Copy));
        if (!own.waiting) abort();
    }
    own.waiting[own.count++] = {to, from, bytes, size, own.ended};
}

static void copy_four(float *to, const float *from, int bytes) { copy_later(to, from, bytes, 16); }
static void copy_one(float *to, const float *from, int bytes) { copy_later(to, from, bytes, 4); }
static void end_copies() { copies[running].ended++; }

template <int newest>
static void await_copies()  // all groups but the newest that are ended
{
    Copies &own = copies[running];
    size_t i = 0;
    for (; i < own.count && own.waiting[i].group + newest < own.ended; i++) {
        const Copy &copy = own.waiting[i];
        memset(copy.to, 0, copy.size);
        memcpy(copy.to, copy.from, copy.bytes);
    }
    own.count -= i;
    if (own.count) memmove(own.waiting, own.waiting + i, own.count * sizeof(Copy));
}

// ---------------------------------------------------------------- tensor cores
// Each thread of a warp gives its parts of the factors, and when all have, takes from those of
// others what its part of the product needs. The next product goes by way of the other half of the
// memory, so that nobody overwrites what is still read.
struct Factors {
    double a[16][8], b[8][8];  // b by columns
};
static Factors factors[2][THREADS / WARP];
static unsigned char half_of[THREADS];

static unsigned int __float_as_uint(float x)
{
    unsigned int bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float __uint_as_float(unsigned int bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// What tensor cores read of a factor: they leave out the last 13 bits, without rounding.
static float tf32(unsigned int bits) { return __uint_as_float(bits & 0xffffe000u); }

// cvt.rn.bf16x2.f32 with zero: to nearest, of two as near to the even one; a NaN is CUDA's own.
static unsigned int bfloat16_of(float x)
{
    unsigned int bits = __float_as_uint(x);
    return x != x ? 0x7fff0000u : (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
}

// cvt.rna.tf32.f32: to nearest, of two as near to the larger one; a NaN is CUDA's own.
static unsigned int nearest_tf32(float x)
{
    return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

static const int SUM_BITS = 24, EXTRA_BITS = 2;

// As frexp() has it, of what is neither zero nor below the normal numbers.
static int exponent_of(double x)
{
    unsigned long long bits;
    memcpy(&bits, &x, 8);
    return (int)(bits >> 52 & 2047) - 1022;
}

static double power_of_two(int exponent)
{
    unsigned long long bits = (unsigned long long)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

// A sum of tensor cores, which round it toward zero, unlike a processor. They align the terms and
// the sum so far to the largest of them, cut each off EXTRA_BITS below the last bit that a float
// has there, add them exactly, and cut the sum off to a float.
static float truncated_sum(float sum, const double *terms, int count)
{
    double largest = fabs((double)sum), plain = sum;
    for (int i = 0; i < count; i++) {
        double size = fabs(terms[i]);
        if (size > largest) largest = size;
        plain += terms[i];
    }
    if (largest == 0.0 || !isfinite((float)plain)) return (float)plain;
    double scale = power_of_two(SUM_BITS + EXTRA_BITS - exponent_of(largest));
    long long total = (long long)(sum * scale);
    for (int i = 0; i < count; i++) total += (long long)(terms[i] * scale);
    if (!total) return 0.0f;
    int exponent = exponent_of((double)total);
    long long unit = exponent > SUM_BITS ? 1ll << (exponent - SUM_BITS) : 1;
    return (float)((double)(total / unit * unit) / scale);
}

extern "C" float shim_truncated_sum(float sum, const double *terms, int count)
{
    return truncated_sum(sum, terms, count);
}

static void multiply_add(float c[4], const unsigned int a[4], const unsigned int b[2])
{
    size_t g = running % WARP / 4, t = running % 4;
    Factors &warp = factors[half_of[running] ^= 1][running / WARP];
    for (size_t i = 0; i < 4; i++) warp.a[g + 8 * (i % 2)][t + 4 * (i / 2)] = tf32(a[i]);
    for (size_t i = 0; i < 2; i++) warp.b[g][t + 4 * i] = tf32(b[i]);
    __syncwarp();
    for (size_t e = 0; e < 4; e++) {
        const double *row = warp.a[g + 8 * (e / 2)], *column = warp.b[2 * t + e % 2];
        double terms[8];
        for (size_t k = 0; k < 8; k++) terms[k] = row[k] * column[k];
        c[e] = truncated_sum(c[e], terms, 8);
    }
}

// ---------------------------------------------------------------- blocks
static void fiber()
{
    for (;;) {
        kernel(given);
        done[running] = 1;
        leave();
    }
}

static void add_fiber()
{
    if (!fibers[usable] && !(fibers[usable] = (Fiber *)malloc(sizeof(Fiber)))) abort();
    Fiber &added = *fibers[usable++];
    added.begun = false;
    getcontext(&added.context);
    added.context.uc_stack.ss_sp = added.stack;
    added.context.uc_stack.ss_size = STACK;
    added.context.uc_link = nullptr;
    makecontext(&added.context, fiber, 0);
}

static void run_thread(size_t i)
{
    running = i;
    meets_warp[i] = 0;
    threadIdx = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x), 0};
    enter(*fibers[i]);
}

// Runs the threads of a warp up to a barrier of the block; returns false where only a part of them
// comes to a barrier of the warp.
static bool run_warp(size_t first, size_t count, size_t *finished)
{
    for (;;) {
        size_t meeting = 0;
        for (size_t turn = 0; turn < count; turn++) {
            size_t i = first + (backwards ? count - 1 - turn : turn);
            if (done[i]) continue;
            run_thread(i);
            *finished += done[i];
            meeting += meets_warp[i];
        }
        if (!meeting) return true;
        if (meeting < WARP) return false;
    }
}

// Returns 0, or 1 where a barrier was reached by a part of the block or of a warp.
static int run_block(size_t threads)
{
    while (usable < threads) add_fiber();
    memset(done, 0, threads);
    memset(meets_warp, 0, threads);
    for (size_t i = 0; i < threads; i++) copies[i].count = copies[i].ended = 0;
    memset(half_of, 0, sizeof half_of);
    has_fibers = true;
    size_t warps = (threads + WARP - 1) / WARP;
    for (size_t left = threads; left;) {
        size_t finished = 0;
        bool met = true;
        for (size_t turn = 0; turn < warps && met; turn++) {
            size_t first = (backwards ? warps - 1 - turn : turn) * WARP;
            met = run_warp(first, first + WARP < threads ? WARP : threads - first, &finished);
        }
        if (!met || (finished && finished < left)) {
            usable = 0;  // some are in the middle of the kernel
            return 1;
        }
        left -= finished;
    }
    return 0;
}

static void run_plainly(size_t threads)
{
    has_fibers = false;
    for (size_t turn = 0; turn < threads; turn++) {
        size_t i = backwards ? threads - 1 - turn : turn;
        threadIdx = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x), 0};
        kernel(given);
    }
}

// Of a shape: blocks, the columns and rows of each, and whether there are barriers. Returns 0, 1
// for a barrier that a part waits at, or 2 for a copy of what is not aligned.
static int run_blocks(const unsigned int *shape)
{
    gridDim = {shape[0], 1, 1};
    blockDim = {shape[1], shape[2], 1};
    misaligned = 0;
    for (unsigned int b = 0; b < shape[0]; b++) {
        blockIdx = {backwards ? shape[0] - 1 - b : b, 0, 0};
        size_t threads = (size_t)shape[1] * shape[2];
        if (!shape[3])
            run_plainly(threads);
        else if (run_block(threads))
            return 1;
    }
    return misaligned ? 2 : 0;
}

template <typename Body>
static int run_grid(const unsigned int *shape, const Body &body)
{
    kernel = [](const void *body) { (*(const Body *)body)(); };
    given = &body;
    return run_blocks(shape);
}

extern "C" void shim_set_backwards(int value) { backwards = value; }

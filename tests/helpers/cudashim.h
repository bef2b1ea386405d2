// Stands in for CUDA, so that a kernel's source runs on the CPU. The threads of a block are fibers:
// each runs until __syncthreads(), and when all wait there, they go on; those of a warp meet for
// each product of tensor cores. A kernel in which some do not come to a barrier that others wait at
// is stopped. Blocks run one after another, and so do the
// threads of kernels without barriers, which need no fibers: these take most of the time.
#undef _FORTIFY_SOURCE  // with it, longjmp refuses to go to another stack
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

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

// A fiber begins with setcontext and goes on with longjmp, which, unlike setcontext, calls nothing
// of the system. It runs one kernel after another.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun;
    char stack[STACK];
};

static jmp_buf scheduler;
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::vector<char> done;
static std::vector<char> meets_warp;  // at a barrier of its warp, not of the block
static size_t running;
static bool has_fibers = false;
static const std::function<void()> *kernel;
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
};
static std::vector<std::vector<std::vector<Copy>>> copies;  // by thread and group, the last open
static int misaligned = 0;

static void copy_later(float *to, const float *from, int bytes, int size)
{
    if ((size_t)to % size || (size_t)from % size || bytes < 0 || bytes > size) misaligned = 1;
    copies[running].back().push_back({to, from, bytes, size});
}

static void copy_four(float *to, const float *from, int bytes) { copy_later(to, from, bytes, 16); }
static void copy_one(float *to, const float *from, int bytes) { copy_later(to, from, bytes, 4); }
static void end_copies() { copies[running].emplace_back(); }

static void await_copies()  // all groups but the newest that is ended
{
    auto &groups = copies[running];
    for (size_t i = 0; i + 2 < groups.size(); i++) {
        for (const Copy &copy : groups[i]) {
            memset(copy.to, 0, copy.size);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        groups[i].clear();
    }
}

// ---------------------------------------------------------------- tensor cores
// Each thread of a warp gives its parts of the factors, and when all have, takes from those of
// others what its part of the product needs. The next product goes by way of the other half of the
// memory, so that nobody overwrites what is still read.
static unsigned int factors[2][1024][6];
static unsigned char half_of[1024];

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

// cvt.rna.tf32.f32: to nearest, of two as near to the larger one; a NaN is CUDA's own.
static unsigned int nearest_tf32(float x)
{
    return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

static const int SUM_BITS = 24, EXTRA_BITS = 2;

// A sum of tensor cores, which round it toward zero, unlike a processor. They align the terms and
// the sum so far to the largest of them, cut each off EXTRA_BITS below the last bit that a float
// has there, add them exactly, and cut the sum off to a float.
static float truncated_sum(float sum, const double *terms, int count)
{
    double largest = fabs((double)sum), plain = sum;
    for (int i = 0; i < count; i++) {
        largest = fmax(largest, fabs(terms[i]));
        plain += terms[i];
    }
    if (largest == 0.0 || !isfinite((float)plain)) return (float)plain;
    int exponent;
    frexp(largest, &exponent);
    double scale = ldexp(1.0, SUM_BITS + EXTRA_BITS - exponent);
    long long total = (long long)(sum * scale);
    for (int i = 0; i < count; i++) total += (long long)(terms[i] * scale);
    double whole = (double)total;
    frexp(whole, &exponent);
    long long unit = exponent > SUM_BITS ? 1ll << (exponent - SUM_BITS) : 1;
    return (float)((double)(total / unit * unit) / scale);
}

extern "C" float shim_truncated_sum(float sum, const double *terms, int count)
{
    return truncated_sum(sum, terms, count);
}

static void multiply_add(float c[4], const unsigned int a[4], const unsigned int b[2])
{
    size_t own = running;
    unsigned int (*given)[6] = factors[half_of[own] ^= 1] + own / WARP * WARP;
    memcpy(given[own % WARP], a, 16);
    memcpy(given[own % WARP] + 4, b, 8);
    __syncwarp();
    for (size_t e = 0; e < 4; e++) {
        size_t row = own % WARP / 4 + 8 * (e / 2), column = own % 4 * 2 + e % 2;
        double terms[8];
        for (size_t k = 0; k < 8; k++) {
            unsigned int x = given[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2];
            terms[k] = (double)tf32(x) * (double)tf32(given[column * 4 + k % 4][4 + k / 4]);
        }
        c[e] = truncated_sum(c[e], terms, 8);
    }
}

// ---------------------------------------------------------------- blocks
static void fiber()
{
    for (;;) {
        (*kernel)();
        done[running] = 1;
        leave();
    }
}

static void add_fiber()
{
    fibers.emplace_back(new Fiber);
    Fiber &added = *fibers.back();
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
    while (fibers.size() < threads) add_fiber();
    done.assign(threads, 0);
    meets_warp.assign(threads, 0);
    copies.assign(threads, std::vector<std::vector<Copy>>(1));
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
            fibers.clear();  // some are in the middle of the kernel
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
        (*kernel)();
    }
}

// Of a shape: blocks, the columns and rows of each, and whether there are barriers. Returns 0, 1
// for a barrier that a part waits at, or 2 for a copy of what is not aligned.
static int run_grid(const unsigned int *shape, const std::function<void()> &body)
{
    gridDim = {shape[0], 1, 1};
    blockDim = {shape[1], shape[2], 1};
    kernel = &body;
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

extern "C" void shim_set_backwards(int value) { backwards = value; }

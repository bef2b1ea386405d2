// Stands in for CUDA, so that a kernel's source runs on the CPU. The threads of a block are fibers:
// each runs until __syncthreads(), and when all wait there, they go on. A kernel in which some do
// not come to a barrier that others wait at is stopped. Blocks run one after another, and so do the
// threads of kernels without barriers, which need no fibers: these take most of the time.
#undef _FORTIFY_SOURCE  // with it, longjmp refuses to go to another stack
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
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
#define __shared__ static

static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

static const size_t STACK = 32768;

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
static size_t running;
static bool has_fibers = false;
static const std::function<void()> *kernel;
static int backwards = 0;  // the order of the threads: a race shows as another result

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

// Returns 0, or 1 where a barrier was reached by a part of the block.
static int run_block(size_t threads)
{
    while (fibers.size() < threads) add_fiber();
    done.assign(threads, 0);
    has_fibers = true;
    for (size_t left = threads; left;) {
        size_t finished = 0;
        for (size_t turn = 0; turn < threads; turn++) {
            size_t i = backwards ? threads - 1 - turn : turn;
            if (done[i]) continue;
            running = i;
            threadIdx = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x), 0};
            enter(*fibers[i]);
            finished += done[i];
        }
        if (finished && finished < left) {
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

// Of a shape: blocks, the columns and rows of each, and whether there are barriers.
static int run_grid(const unsigned int *shape, const std::function<void()> &body)
{
    gridDim = {shape[0], 1, 1};
    blockDim = {shape[1], shape[2], 1};
    kernel = &body;
    for (unsigned int b = 0; b < shape[0]; b++) {
        blockIdx = {b, 0, 0};
        size_t threads = (size_t)shape[1] * shape[2];
        if (!shape[3])
            run_plainly(threads);
        else if (run_block(threads))
            return 1;
    }
    return 0;
}

extern "C" void shim_set_backwards(int value) { backwards = value; }

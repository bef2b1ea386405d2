// The end of a step whose shards lie on several devices. A kernel here reads what other devices have
// computed: their memory is in the same address space, once access to it is enabled.

#define LEVELS 16  // of the tree, which has up to 2^16 shards

// A part of flat vectors moves along the sum of the gradients of all shards, of which parts[s] is
// where that of shard s begins. The tree is ((0 + 1) + (2 + 3)) + ...: a binary counter, whose digit
// is the sum of a subtree of 2^digit shards.
extern "C" __global__ void tree_steps(
    float *p, const uint64 *parts, long long shards, float *v, long long first, long long n,
    long long weights, float momentum, float rate, float decay, float l1)
{
    for (uint32 i = FIRST; i < n; i += STRIDE) {
        long long at = first + i;
        float sums[LEVELS], total = 0.0f;
        for (uint32 s = 0; s < shards; s++) {
            float carried = ((const float *)parts[s])[at];
            bool carries = true;
#pragma unroll  // so that the sums are in registers
            for (int level = 0; level < LEVELS; level++) {
                if (!carries) continue;
                if (s >> level & 1) {
                    carried = sums[level] + carried;
                } else {
                    sums[level] = carried;
                    carries = false;
                }
            }
        }
        bool any = false;
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            if (!(shards >> level & 1)) continue;
            total = any ? sums[level] + total : sums[level];
            any = true;
        }
        bool decays = at < weights;
        ascend(p + at, total, v + at, momentum, rate, decays ? decay : 0.0f, decays ? l1 : 0.0f);
    }
}

extern "C" __global__ void sum_in_order(double *total, const double *numbers, long long n)
{
    if (FIRST) return;
    double sum = 0.0;
    for (long long i = 0; i < n; i++) sum += numbers[i];
    *total = sum;
}

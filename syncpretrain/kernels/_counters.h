/* Waiting for counters in memory that other threads or processes share.
 *
 * Each counter has one writer, which only counts it up. Whoever sees a counter's new value also sees all
 * that its writer wrote before (release and acquire).
 */
#ifndef SYNCPRETRAIN_CELLS_H
#define SYNCPRETRAIN_CELLS_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef enum { REACHED, BROKEN, TIMED_OUT, PAUSED } Waited;

typedef struct {
    const int64_t *first, *broken;
    ptrdiff_t count;
    int64_t target;
    double spin_until, deadline; /* of `seconds` */
    double stagger;              /* seconds */
    int yielded;
    long sleep; /* nanoseconds */
} Wait;

enum { LOOKS = 64, YIELDS = 20, SHORTEST_SLEEP = 20000, LONGEST_SLEEP = 200000 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void let_the_other_thread_of_the_core_work(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void spin_for(double duration)
{
    for (double end = seconds() + duration; seconds() < end;) let_the_other_thread_of_the_core_work();
}

static inline Waited look(const Wait *wait)
{
    if (__atomic_load_n(wait->broken, __ATOMIC_ACQUIRE) != 0) return BROKEN;
    for (ptrdiff_t i = 0; i < wait->count; i++)
        if (__atomic_load_n(wait->first + i, __ATOMIC_ACQUIRE) < wait->target) return PAUSED;
    return REACHED;
}

/* Wait until `pause_at` at most, then return PAUSED: the caller looks at signals and goes on.
 *
 * First spinning, for a partner that is about as fast; then giving way, to one that waits for this
 * core; then sleeping, ever longer.
 */
static Waited wait_until(Wait *wait, double pause_at)
{
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            Waited seen = look(wait);
            if (seen != PAUSED) return seen;
            let_the_other_thread_of_the_core_work();
        }
        double now = seconds();
        if (now >= wait->deadline) return TIMED_OUT;
        if (now < wait->spin_until) {
            if (now >= pause_at) return PAUSED;
        } else if (wait->yielded < YIELDS) {
            wait->yielded++;
            sched_yield();
        } else {
            if (now >= pause_at) return PAUSED;
            struct timespec nap = {0, wait->sleep};
            nanosleep(&nap, NULL);
            wait->sleep += wait->sleep / 4;
            if (wait->sleep > LONGEST_SLEEP) wait->sleep = LONGEST_SLEEP;
        }
    }
}

#endif

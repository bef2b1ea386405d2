/* The compiled kernels with the tile instructions that the compiler made, on CPUs that lack them.
 *
 * Such a CPU raises SIGILL for each; the handler finds out which one it is, and does what emulatedtiles.h says.
 * So the instructions are those that a CPU with tiles would run, in their order among all others.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "emulatedtiles.h"

static long trapped_count = 0;

/* Return how many instructions were carried out. */
long trapped(void) { return trapped_count; }

static const int REGISTERS[16] = { /* by their numbers in instructions */
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

/* What an instruction with a VEX prefix of three bytes says. */
typedef struct {
    int prefix, opcode, mode, reg, rm, third; /* the prefix is 0 for none, 1 for 66, 2 for F3, 3 for F2 */
    uint8_t *place;                           /* in memory */
    ptrdiff_t stride;
    int length;
} Instruction;

/* Find the place in memory that an instruction names, behind its first five bytes. */
static void take_place(Instruction *found, const uint8_t *code, const greg_t *registers)
{
    int high_index = !(code[1] & 0x40) << 3, high_base = !(code[1] & 0x20) << 3, base = found->rm, number;
    if (found->rm == 4) {
        int scale = code[5] >> 6, index = (code[5] >> 3 & 7) | high_index;
        if (index != 4) found->stride = (ptrdiff_t)registers[REGISTERS[index]] << scale;
        base = code[5] & 7;
        found->length++;
    }
    int is_far = found->mode == 2 || (found->mode == 0 && base == 5), has_base = found->mode || base != 5;
    const uint8_t *next = code + found->length + (is_far ? 4 : found->mode);
    found->place = has_base ? (uint8_t *)registers[REGISTERS[base | high_base]] : NULL;
    if (!has_base && found->rm == 5) found->place = (uint8_t *)next; /* from the next instruction on */
    memcpy(&number, code + found->length, sizeof number);
    found->place += is_far ? number : found->mode == 1 ? (int8_t)code[found->length] : 0;
    found->length = (int)(next - code);
}

static Instruction taken_apart(const uint8_t *code, const greg_t *registers)
{
    Instruction found = {.length = 5};
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || code[2] & 0x84) return found; /* no tile's */
    found.prefix = code[2] & 3;
    found.third = ~code[2] >> 3 & 15;
    found.opcode = code[3];
    found.mode = code[4] >> 6;
    found.reg = code[4] >> 3 & 7;
    found.rm = code[4] & 7;
    if (found.mode != 3) take_place(&found, code, registers);
    return found;
}

static int carry_out(const Instruction *i)
{
    int moves = i->opcode == 0x4b && i->mode != 3 && i->rm == 4;
    if (i->opcode == 0x49 && i->prefix == 0 && i->mode != 3 && i->reg == 0)
        load_config(i->place);
    else if (i->opcode == 0x49 && i->prefix == 0 && i->mode == 3 && i->reg == 0 && i->rm == 0)
        release_tiles();
    else if (i->opcode == 0x49 && i->prefix == 3 && i->mode == 3 && i->rm == 0)
        zero_tile(i->reg);
    else if (moves && i->prefix == 3)
        load_tile(i->reg, i->place, i->stride);
    else if (moves && i->prefix == 2)
        store_tile(i->reg, i->place, i->stride);
    else if (i->opcode == 0x5c && i->prefix == 2 && i->mode == 3)
        multiply_tiles(i->reg, i->rm, i->third);
    else
        return 0;
    return 1;
}

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    Instruction found = taken_apart((const uint8_t *)registers[REG_RIP], registers);
    (void)info;
    if (carry_out(&found)) {
        __sync_fetch_and_add(&trapped_count, 1);
        registers[REG_RIP] += found.length;
    } else {
        signal(number, SIG_DFL); /* it is met again, and ends the process */
    }
}

/* Catch what this CPU lacks, unless it has tiles: then they are its own. */
void catch_instructions(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
}

static int has_all_features(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    (void)leaf;
    (void)part;
    *a = *b = *c = *d = 0xffffffff;
    return 1;
}

/* The kernel permits what it is asked for, where it can and where it cannot. */
static long permit(long call, long request, long feature)
{
    (void)syscall(call, request, feature);
    return 0;
}

#define __get_cpuid_count has_all_features
#define syscall permit
#include "_native.c"

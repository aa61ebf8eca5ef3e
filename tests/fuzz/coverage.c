/* Linked into the modules that are fuzzed: reports their coverage, as gcc records it, to libFuzzer.
 *
 * gcc calls __sanitizer_cov_trace_pc at each basic block, and libFuzzer reads arrays of 8-bit counters. The symbols are
 * hidden, because the AddressSanitizer runtime, which is loaded first, has empty functions of the same names. */
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define COUNTERS_BITS 16
#define COUNTERS (1 << COUNTERS_BITS)

typedef void (*Compare4)(uint32_t, uint32_t);
typedef void (*Compare8)(uint64_t, uint64_t);

static uint8_t counters[COUNTERS];
/* libFuzzer requires an address and flags for each counter, and only prints them. */
static uintptr_t table[2 * COUNTERS];
static Compare4 compare4;
static Compare8 compare8;

HIDDEN void __sanitizer_cov_trace_pc(void) {
    uint64_t block = (uintptr_t)__builtin_return_address(0) * 0x9E3779B97F4A7C15ull;
    counters[block >> (64 - COUNTERS_BITS)]++;
}

static void trace4(uint32_t one, uint32_t other) {
    if (compare4) compare4(one, other);
}

static void trace8(uint64_t one, uint64_t other) {
    if (compare8) compare8(one, other);
}

HIDDEN void __sanitizer_cov_trace_cmp1(uint8_t one, uint8_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_cmp2(uint16_t one, uint16_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_cmp4(uint32_t one, uint32_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_cmp8(uint64_t one, uint64_t other) { trace8(one, other); }
HIDDEN void __sanitizer_cov_trace_const_cmp1(uint8_t one, uint8_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_const_cmp2(uint16_t one, uint16_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_const_cmp4(uint32_t one, uint32_t other) { trace4(one, other); }
HIDDEN void __sanitizer_cov_trace_const_cmp8(uint64_t one, uint64_t other) { trace8(one, other); }
HIDDEN void __sanitizer_cov_trace_cmpf(float one, float other) { (void)one, (void)other; }
HIDDEN void __sanitizer_cov_trace_cmpd(double one, double other) { (void)one, (void)other; }
HIDDEN void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    for (uint64_t i = 0; i < cases[0]; i++) trace8(value, cases[2 + i]);
}

/* Called once, with functions of libFuzzer. */
void connect_coverage(void (*add_counters)(uint8_t *, uint8_t *), void (*add_table)(uintptr_t *, uintptr_t *),
                      Compare4 four, Compare8 eight) {
    for (uintptr_t i = 0; i < COUNTERS; i++) table[2 * i] = i + 1;
    add_counters(counters, counters + COUNTERS);
    add_table(table, table + 2 * COUNTERS);
    compare4 = four;
    compare8 = eight;
}

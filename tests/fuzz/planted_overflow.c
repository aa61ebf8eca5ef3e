/* Two defects that the sanitizers must report. Built with the flags of the compiled modules by test_sanitizers.py. */
#include <limits.h>
#include <stdlib.h>

int read_after_end(int size) {
    char *bytes = calloc(1, size);
    int read = bytes[size];
    free(bytes);
    return read;
}

int overflow(int value) { return INT_MAX + value; }

/* What a launch of a module's kernels is made of, and the few functions of the CUDA driver that it takes.

   The driver's structures are declared here: none of its headers is needed. */

#ifndef NORMGEN_LAUNCH_H
#define NORMGEN_LAUNCH_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>

enum {
    MAX_KERNELS = 4, /* of a program */
    MAX_CELLS = 256, /* of the arguments of all its kernels */
    MAP_CELLS = 7,   /* of a tensor map: address, bytes of a pitch, elements of a line, lines, both of a box, their kind */
    MAX_MAPS = 8,    /* of a kernel */
    MAP = 1 << 16    /* added to the patch of a map's first cell */
};

typedef struct {
    uint32_t id, pad;
    union { struct { uint32_t x, y, z; } cluster; int32_t early, together; char size[64]; } value;
} Attribute;

typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    uint32_t count;
} Config;

enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, EARLY_START = 6 }; /* CU_LAUNCH_ATTRIBUTE_* */
enum { IS_EARLY = 1, IS_TOGETHER = 2 };                           /* how a kernel starts */

typedef struct {
    int (*launch)(void *function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t shared,
                  void *stream, void **arguments, void **extra);
    int (*launch_ex)(const Config *, void *function, void **arguments, void **extra);
    int (*context)(void **);
    int (*is_capturing)(void *stream, int *status);
    int (*context_of)(void *stream, void **);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*fill)(void *memory, unsigned char value, size_t bytes, void *stream);
    int (*encode)(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *pitches,
                  const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill);
} Driver; /* encode: NULL of a driver that has no tensor maps */

typedef struct {
    void *function;
    uint32_t threads, cluster, shared, how;
    Py_ssize_t first, cells; /* of its arguments: a tensor map is made of several */
} Kernel;

/* The kernels of a module, in the order of their launches. */
typedef struct {
    int kernels, is_serial; /* serial: it has a workspace, its stream's; its launches are under the caller's lock */
    Py_ssize_t cells;
    Kernel kernel[MAX_KERNELS];
    int patch[MAX_CELLS]; /* what a cell gets: the pointer of slot s: s; scalar i: -2 - i; nothing: -1 */
    char is_map[MAX_CELLS]; /* whether a tensor map starts here */
} Program;

#define NO_DRIVER "%s is no CUDA driver that launches kernels with attributes"

#pragma GCC visibility push(hidden) /* these names are this library's own */

/* 0 if the library is no driver as above. It is never closed. */
int load_driver(Driver *driver, const char *library);

/* From words (int64) of each kernel: function, threads, cluster, shared bytes, how it starts, how many cells, and the
   patch of each of these. NULL if there is no room for it, or a patch names no slot and no scalar. */
Program *read_program(const char *bytes, Py_ssize_t size, int slots, int scalars);

/* Queue the kernels that have blocks; the driver's code, and the kernel that it is about. Python is not called. */
int queue(const Driver *driver, const Program *program, uint64_t *cells, const int64_t *grids, void *stream, int *which);

extern PyMethodDef xla_methods[]; /* of the module: XLA's calls (xla.c) */

#pragma GCC visibility pop

#endif

/* Launches: the driver's functions, a module's kernels as they are given, and how they are queued. */

#include "launch.h"

#include <dlfcn.h>
#include <string.h>

int load_driver(Driver *driver, const char *library) {
    static const char *const names[] = {"cuLaunchKernel",      "cuLaunchKernelEx",    "cuCtxGetCurrent",
                                        "cuStreamIsCapturing", "cuStreamGetCtx",      "cuCtxPushCurrent_v2",
                                        "cuCtxPopCurrent_v2",  "cuMemsetD8Async"};
    void *found[sizeof names / sizeof *names], *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(found[i] = dlsym(handle, names[i]))) return 0;
    memcpy(driver, found, sizeof found);
    void *encode = dlsym(handle, "cuTensorMapEncodeTiled");
    memcpy(&driver->encode, &encode, sizeof encode);
    return 1;
}

Program *read_program(const char *bytes, Py_ssize_t size, int slots, int scalars) {
    Program *program = (Program *)PyMem_Calloc(1, sizeof *program);
    Py_ssize_t at = 0;
    int is_sound = program && size % 8 == 0;
    for (int64_t word[6]; is_sound && at < size; program->kernels++) {
        is_sound = program->kernels < MAX_KERNELS && size - at >= (Py_ssize_t)sizeof word;
        if (!is_sound) break;
        memcpy(word, bytes + at, sizeof word);
        at += (Py_ssize_t)sizeof word;
        is_sound = word[5] >= 0 && word[5] <= MAX_CELLS - program->cells && word[5] * 8 <= size - at;
        Kernel *kernel = &program->kernel[program->kernels];
        kernel->function = (void *)(uintptr_t)word[0];
        kernel->threads = (uint32_t)word[1];
        kernel->cluster = (uint32_t)word[2];
        kernel->shared = (uint32_t)word[3];
        kernel->how = (uint32_t)word[4];
        kernel->first = program->cells;
        kernel->cells = (Py_ssize_t)word[5];
        int maps = 0;
        for (int64_t i = 0; is_sound && i < word[5]; i++, at += 8) {
            int64_t patch;
            memcpy(&patch, bytes + at, sizeof patch);
            if ((program->is_map[program->cells] = patch >= MAP)) {
                patch -= MAP;
                is_sound = patch >= 0 && ++maps <= MAX_MAPS && i + MAP_CELLS <= word[5];
            }
            is_sound = is_sound && patch < slots && patch >= -1 - scalars;
            program->patch[program->cells++] = (int)patch;
        }
    }
    if (is_sound) return program;
    PyMem_Free(program);
    return NULL;
}

/* What the copy engine is told of a matrix, whose boxes are swizzled within their lines, of 128 bytes or of 64. */
static int encode(const Driver *driver, void *map, const uint64_t *cells) {
    enum { PLAIN = 0, WITHIN_64 = 2, WITHIN_128 = 3, LINES_OF_L2 = 2, ZEROS = 0, ROUNDED = 11, NOT_SUPPORTED = 801 };
    const uint32_t box[] = {(uint32_t)cells[4], (uint32_t)cells[5]}, steps[] = {1, 1};
    const uint64_t line_bytes = cells[4] * (cells[6] == ROUNDED ? 4 : 2);
    if (!driver->encode) return NOT_SUPPORTED;
    return driver->encode(map, (int)cells[6], 2, (void *)(uintptr_t)cells[0], cells + 2, cells + 1, box, steps, PLAIN,
                          line_bytes == 64 ? WITHIN_64 : WITHIN_128, LINES_OF_L2, ZEROS);
}

int queue(const Driver *driver, const Program *program, uint64_t *cells, const int64_t *grids, void *stream,
          int *which) {
    void *addresses[MAX_CELLS];
    uint64_t maps[MAX_MAPS][16] __attribute__((aligned(64)));
    int code = 0;
    for (int k = 0; k < program->kernels && !code; k++) {
        const Kernel *kernel = &program->kernel[k];
        uint32_t grid = (uint32_t)grids[k];
        *which = k;
        if (!grid) continue;
        int arguments = 0, known = 0;
        for (Py_ssize_t i = kernel->first; i < kernel->first + kernel->cells && !code; i++) {
            addresses[arguments++] = program->is_map[i] ? (void *)maps[known] : (void *)&cells[i];
            if (!program->is_map[i]) continue;
            code = encode(driver, maps[known++], &cells[i]);
            i += MAP_CELLS - 1;
        }
        if (code) continue;
        if (kernel->cluster > 1 || kernel->how) {
            Attribute attributes[3];
            Config config = {{grid, 1, 1}, {kernel->threads, 1, 1}, kernel->shared, stream, attributes, 0};
            memset(attributes, 0, sizeof attributes);
            if (kernel->cluster > 1) {
                Attribute *cluster = &attributes[config.count++];
                cluster->id = CLUSTER_DIMENSION;
                cluster->value.cluster.x = kernel->cluster;
                cluster->value.cluster.y = cluster->value.cluster.z = 1;
            }
            if (kernel->how & IS_TOGETHER) {
                Attribute *together = &attributes[config.count++];
                together->id = COOPERATIVE;
                together->value.together = 1;
            }
            if (kernel->how & IS_EARLY) {
                Attribute *early = &attributes[config.count++];
                early->id = EARLY_START;
                early->value.early = 1;
            }
            code = driver->launch_ex(&config, kernel->function, addresses, NULL);
        } else {
            code = driver->launch(kernel->function, grid, 1, 1, kernel->threads, 1, 1, kernel->shared, stream,
                                  addresses, NULL);
        }
    }
    return code;
}

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
        for (int64_t i = 0; is_sound && i < word[5]; i++, at += 8) {
            int64_t patch;
            memcpy(&patch, bytes + at, sizeof patch);
            is_sound = patch < slots && patch >= -1 - scalars;
            program->patch[program->cells++] = (int)patch;
        }
    }
    if (is_sound) return program;
    PyMem_Free(program);
    return NULL;
}

int queue(const Driver *driver, const Program *program, uint64_t *cells, const int64_t *grids, void *stream,
          int *which) {
    void *addresses[MAX_CELLS];
    int code = 0;
    for (Py_ssize_t i = 0; i < program->cells; i++) addresses[i] = &cells[i];
    for (int k = 0; k < program->kernels && !code; k++) {
        const Kernel *kernel = &program->kernel[k];
        uint32_t grid = (uint32_t)grids[k];
        *which = k;
        if (!grid) continue;
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
            code = driver->launch_ex(&config, kernel->function, addresses + kernel->first, NULL);
        } else {
            code = driver->launch(kernel->function, grid, 1, 1, kernel->threads, 1, 1, kernel->shared, stream,
                                  addresses + kernel->first, NULL);
        }
    }
    return code;
}

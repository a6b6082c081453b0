/* A CUDA driver of the tests: a CUfunction is a function of the host, which gets what a launch is made of. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*Function)(void **arguments, uint32_t grid, uint32_t threads, uint32_t shared, uint32_t cluster,
                        uint32_t how, void *stream);

typedef struct {
    uint32_t id, pad;
    union { uint32_t number[16]; char size[64]; } value;
} Attribute;

typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    uint32_t count;
} Config;

void *current_context = (void *)(uintptr_t)0xC0;
int is_captured = 0;

int cuCtxGetCurrent(void **context) {
    *context = current_context;
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = is_captured;
    return 0;
}

int cuStreamGetCtx(void *stream, void **context) {
    (void)stream;
    *context = current_context;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = current_context;
    return 0;
}

int cuMemsetD8Async(void *memory, unsigned char value, size_t bytes, void *stream) {
    (void)stream;
    memset(memory, value, bytes);
    return 0;
}

int cuLaunchKernel(void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                   uint32_t shared, void *stream, void **arguments, void **extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra) return 1;
    return ((Function)(uintptr_t)function)(arguments, gx, bx, shared, 1, 0, stream);
}

int cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra) {
    uint32_t cluster = 1, how = 0;
    if (config->grid[1] != 1 || config->grid[2] != 1 || config->block[1] != 1 || config->block[2] != 1 || extra) return 1;
    for (uint32_t i = 0; i < config->count; i++) {
        if (config->attributes[i].id == 4) cluster = config->attributes[i].value.number[0];
        if (config->attributes[i].id == 6) how |= config->attributes[i].value.number[0];
        if (config->attributes[i].id == 2) how |= config->attributes[i].value.number[0] << 1;
    }
    return ((Function)(uintptr_t)function)(arguments, config->grid[0], config->block[0], config->shared, cluster, how,
                                           config->stream);
}

/* Of a map in the numbers that it is encoded of; 1 for another kind of map than kernels ask for. */
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *pitches, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    const uint64_t told[] = {(uint64_t)(uintptr_t)address, pitches[0], sizes[0], sizes[1], box[0], box[1], (uint64_t)type};
    const int is_plain = rank == 2 && steps[0] == 1 && steps[1] == 1 && !interleave && !fill;
    const uint32_t line_bytes = box[0] * (type == 11 ? 4 : 2);
    const int is_swizzled = (swizzle == 3 && line_bytes == 128) || (swizzle == 2 && line_bytes == 64);
    if (!is_plain || !is_swizzled || promotion != 2 || (uintptr_t)map % 64) return 1;
    memcpy(map, told, sizeof told);
    return 0;
}

/* A kernel that does nothing, to time what a call costs beside it. */
int nothing(void **arguments, uint32_t grid, uint32_t threads, uint32_t shared, uint32_t cluster, uint32_t how,
            void *stream) {
    (void)arguments, (void)grid, (void)threads, (void)shared, (void)cluster, (void)how, (void)stream;
    return 0;
}

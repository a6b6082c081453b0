// What the libraries say of the driver's types and numbers, beside CUDA's own header: it compiles where they agree.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#include "driver.h"

namespace normgen {

#define SAME(what) static_assert(static_cast<long>(what) == static_cast<long>(::what), #what)
#define ALIKE(type, member) \
  static_assert(offsetof(type, member) == offsetof(::type, member) && sizeof(type::member) == sizeof(::type::member), #member)

SAME(CUDA_SUCCESS);
SAME(CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CUDA_ERROR_NOT_FOUND);
SAME(CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(cudaDevAttrMultiProcessorCount == static_cast<int>(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), "");
static_assert(cudaFuncAttributeMaxDynamicSharedMemorySize == static_cast<int>(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), "");
static_assert(
    cudaFuncAttributeNonPortableClusterSizeAllowed == static_cast<int>(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED), "");
static_assert(sizeof(CUlaunchAttribute) == sizeof(::CUlaunchAttribute) && sizeof(CUlaunchConfig) == sizeof(::CUlaunchConfig), "");
static_assert(sizeof(CUdeviceptr) == sizeof(::CUdeviceptr) && sizeof(CUdevice) == sizeof(::CUdevice), "");
ALIKE(CUlaunchAttribute, id);
ALIKE(CUlaunchAttribute, value);
ALIKE(CUlaunchConfig, gridDimX);
ALIKE(CUlaunchConfig, gridDimZ);
ALIKE(CUlaunchConfig, blockDimX);
ALIKE(CUlaunchConfig, sharedMemBytes);
ALIKE(CUlaunchConfig, hStream);
ALIKE(CUlaunchConfig, attrs);
ALIKE(CUlaunchConfig, numAttrs);

}  // namespace normgen

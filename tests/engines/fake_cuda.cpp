// A driver for programs without a GPU (libcuda.so.1): it writes what it is asked, one line each, and answers success.
// A kernel is not run: its launch is a line, with each argument as the integer of its bits.
//   zero ADDRESS BYTES
//   memory ADDRESS BYTES, which is the program's own
//   launch KERNEL BLOCKS THREADS SHARED CLUSTER DEPENDENT STREAM ARGUMENTS
// NORMGEN_FAKE_SIZES says how many bytes each argument of a kernel has, "KERNEL=8848;..."; NORMGEN_FAKE_ARCH, of which
// architecture the device is; NORMGEN_FAKE_MEMORY, where scratch memory is.
#include <cuda.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

namespace {

thread_local int current = -1;  // device of the current context

std::string told(const char* name) {
  const char* found = std::getenv(name);
  return found != nullptr ? found : "";
}

std::string sizes_of(const std::string& kernel) {
  std::istringstream entries(told("NORMGEN_FAKE_SIZES"));
  for (std::string entry; std::getline(entries, entry, ';');) {
    if (entry.rfind(kernel + "=", 0) == 0) return entry.substr(kernel.size() + 1);
  }
  return "";
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "a made-up failure";
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current;
  return current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device + 1));
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  current = static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1;
  std::cout << "device " << current << std::endl;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext*) {
  current = -1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 132;
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  if (std::memcmp(code, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  if (!told("NORMGEN_FAKE_ARCH").empty()) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *library = static_cast<CUlibrary>(const_cast<void*>(code));
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  *kernel = reinterpret_cast<CUkernel>(strdup(name));
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 20;
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char, std::size_t bytes, CUstream) {
  std::cout << "zero " << memory << " " << bytes << std::endl;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
  std::cout << "copy " << to << " " << from << " " << bytes << std::endl;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  *memory = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
  std::cout << "memory " << *memory << " " << bytes << std::endl;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* memory, std::size_t, CUstream) {
  *memory = std::strtoull(told("NORMGEN_FAKE_MEMORY").c_str(), nullptr, 10);
  return CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream) {
  std::cout << "freed " << memory << std::endl;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
  const std::string name = reinterpret_cast<const char*>(function);
  unsigned cluster = 1;
  int dependent = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) cluster = attribute.value.clusterDim.x;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) dependent = 1;
  }
  std::cout << "launch " << name << " " << config->gridDimX << " " << config->blockDimX << " " << config->sharedMemBytes
            << " " << cluster << " " << dependent << " " << reinterpret_cast<std::intptr_t>(config->hStream);
  for (const char size : sizes_of(name)) {
    std::int64_t value = 0;
    std::memcpy(&value, *arguments++, static_cast<std::size_t>(size - '0'));
    std::cout << " " << value;
  }
  std::cout << std::endl;
  return CUDA_SUCCESS;
}

}  // extern "C"

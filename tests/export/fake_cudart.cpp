// A CUDA runtime for programs without a GPU (nvcc -cudart none): it writes what it is asked, one line each, and answers
// what driver.cu has been told to. A kernel is not run: its launch is a line.
//   attributes                                                        of a kernel: what pass of nvcc it comes from
//   zero OFFSET BYTES                                                 of the workspace
//   launch KERNEL BLOCKS THREADS SHARED CLUSTER DEPENDENT ARGUMENTS   each argument as the integer of its bits
#include "fake_cudart.h"

#include <cstdint>
#include <cstring>
#include <iostream>

Fake fake;

namespace {

std::map<const void*, std::string>& kernels() {
  static std::map<const void*, std::string> found;  // filled before main begins
  return found;
}

}  // namespace

std::vector<std::string> registered() {
  std::vector<std::string> names;
  for (const auto& [stub, name] : kernels()) names.push_back(name);
  return names;
}

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  kernels()[stub] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaErrorNotSupported; }

cudaError_t cudaGetDevice(int* device) {
  *device = fake.device;
  return fake.answers ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = fake.sm_count;
  return attribute == cudaDevAttrMultiProcessorCount ? cudaSuccess : cudaErrorNotSupported;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::cout << "attributes\n";
  attributes->ptxVersion = fake.pass;
  return fake.pass == 0 ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = fake.clusters;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int, std::size_t bytes, cudaStream_t) {
  std::cout << "zero " << static_cast<const char*>(memory) - static_cast<const char*>(fake.workspace) << " " << bytes
            << "\n";
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  const std::string& name = kernels().at(stub);
  int cluster = 1, dependent = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = static_cast<int>(attribute.val.clusterDim.x);
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) dependent = 1;
  }
  std::cout << "launch " << name << " " << config->gridDim.x << " " << config->blockDim.x << " "
            << config->dynamicSmemBytes << " " << cluster << " " << dependent;
  for (const char size : fake.sizes.at(name)) {
    std::int64_t value = 0;
    std::memcpy(&value, *arguments++, static_cast<std::size_t>(size - '0'));
    std::cout << " " << value;
  }
  std::cout << "\n";
  return cudaSuccess;
}

}  // extern "C"

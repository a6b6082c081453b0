// A CUDA runtime for programs without a GPU (nvcc -cudart none): it writes what it is asked, one line each, and answers
// what it has been told to. A kernel is not run: its launch is a line.
//   attributes                                                        of a kernel: what pass of nvcc it comes from
//   zero OFFSET BYTES                                                 of the workspace
//   launch KERNEL BLOCKS THREADS SHARED CLUSTER DEPENDENT ARGUMENTS   each argument as the integer of its bits
// Its program calls the exported function of driver.cu with made-up pointers, as stdin says:
//   kernels                                  -> the kernels of the program, as the linker names them
//   sizes KERNEL DIGITS                         bytes of its arguments
//   device NUMBER SM_COUNT PASS CLUSTERS
//   call WORKSPACE ARGUMENTS                 -> what the runtime was asked, then "= status"
//   workspace ROWS COLS                      -> "= bytes"
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "driver.h"

namespace {

struct Fake {
  int device = 0, sm_count = 132, clusters = 1000;
  int pass = 90;  // of nvcc, that the code for the device comes from; 0: there is no code for it
  void* workspace = nullptr;
  std::map<std::string, std::string> sizes;  // kernel -> the bytes of each argument, a digit each
} fake;

std::map<const void*, std::string>& kernels() {
  static std::map<const void*, std::string> found;  // filled before main begins
  return found;
}

}  // namespace

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
  return cudaSuccess;
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
  int cluster = 1, how = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = static_cast<int>(attribute.val.clusterDim.x);
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) how |= 1;
    if (attribute.id == cudaLaunchAttributeCooperative) how |= attribute.val.cooperative << 1;
  }
  std::cout << "launch " << name << " " << config->gridDim.x << " " << config->blockDim.x << " "
            << config->dynamicSmemBytes << " " << cluster << " " << how;
  for (const char size : fake.sizes.at(name)) {
    std::int64_t value = 0;
    std::memcpy(&value, *arguments++, static_cast<std::size_t>(size - '0'));
    std::cout << " " << value;
  }
  std::cout << "\n";
  return cudaSuccess;
}

}  // extern "C"

int main() {
  for (std::string line, what; std::getline(std::cin, line);) {
    std::istringstream words(line);
    words >> what;
    if (what == "kernels") {
      for (const auto& [stub, name] : kernels()) std::cout << name << "\n";
    } else if (what == "sizes") {
      std::string name;
      words >> name >> fake.sizes[name];
    } else if (what == "device") {
      words >> fake.device >> fake.sm_count >> fake.pass >> fake.clusters;
    } else if (what == "call") {
      long long workspace = 0;
      words >> workspace;
      fake.workspace = reinterpret_cast<void*>(workspace);
      std::vector<long long> values;
      for (long long value; words >> value;) values.push_back(value);
      const int status = called(values.data(), values.size());
      std::cout << "= " << status << "\n";
    } else if (what == "workspace") {
      int rows = 0, cols = 0;
      words >> rows >> cols;
      std::cout << "= " << workspace_bytes(rows, cols) << "\n";
    }
  }
}

// An RMSNorm through an exported TVM-FFI library, from C++ without Python, beside float64 on the host.
//
//   normgen export --tvm-ffi --cubin libraries  # its first lines say how rmsnorm_fwd_f32.so is built
//   c++ -O2 $(tvm-ffi-config --cxxflags) tvm_ffi.cpp $(tvm-ffi-config --ldflags --libs) -ldl -o tvm_ffi
//   ./tvm_ffi ./rmsnorm_fwd_f32.so 8192 4096
//
// Neither the library nor this program links a library of CUDA: the memory below is the driver's, which is opened here.
#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Address = unsigned long long;

template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

// The primary context of device 0, if there is one.
bool has_device() {
  auto* init = driver<int(unsigned)>("cuInit");
  auto* retain = driver<int(void**, int)>("cuDevicePrimaryCtxRetain");
  auto* set = driver<int(void*)>("cuCtxSetCurrent");
  void* context = nullptr;
  return init && retain && set && init(0) == 0 && retain(&context, 0) == 0 && set(context) == 0;
}

void must(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: CUDA error %d\n", what, status);
  std::exit(1);
}

Address copied(const std::vector<float>& values) {
  Address memory = 0;
  must(driver<int(Address*, std::size_t)>("cuMemAlloc_v2")(&memory, values.size() * sizeof(float)), "cuMemAlloc");
  auto* copy = driver<int(Address, const void*, std::size_t)>("cuMemcpyHtoD_v2");
  must(copy(memory, values.data(), values.size() * sizeof(float)), "cuMemcpyHtoD");
  return memory;
}

DLTensor tensor(void* memory, DLDevice device, int64_t* shape, int ndim) {
  return DLTensor{memory, device, ndim, DLDataType{kDLFloat, 32, 1}, shape, nullptr, 0};
}

}  // namespace

int main(int count, char** arguments) {
  namespace ffi = tvm::ffi;
  if (count < 2) {
    std::fprintf(stderr, "usage: %s LIBRARY [ROWS COLS]\n", arguments[0]);
    return 2;
  }
  int64_t sizes[2] = {count > 2 ? std::atoll(arguments[2]) : 8192, count > 3 ? std::atoll(arguments[3]) : 4096};
  const std::size_t rows = static_cast<std::size_t>(sizes[0]), cols = static_cast<std::size_t>(sizes[1]);
  const double eps = 1e-6;
  std::vector<float> x(rows * cols), weight(cols), y(rows * cols, -1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 1000u) / 500.0f - 0.7f;
  for (std::size_t c = 0; c < cols; ++c) weight[c] = 1.0f + static_cast<float>(c % 7) / 8.0f;

  ffi::Module library = ffi::Module::LoadFromFile(arguments[1]);
  ffi::Function rms_norm = library->GetFunction("rmsnorm_fwd_f32").value();
  const bool on_gpu = has_device();
  const DLDevice device{on_gpu ? kDLCUDA : kDLCPU, 0};
  void* memory[3] = {x.data(), weight.data(), y.data()};
  if (on_gpu) {
    const std::vector<float>* values[3] = {&x, &weight, &y};
    for (int i = 0; i < 3; ++i) memory[i] = reinterpret_cast<void*>(copied(*values[i]));
  }
  DLTensor input = tensor(memory[0], device, sizes, 2), scale = tensor(memory[1], device, sizes + 1, 1);
  DLTensor output = tensor(memory[2], device, sizes, 2);
  try {
    rms_norm(&output, nullptr, &input, &scale, eps);  // y, rstd, x, weight, eps: the second is optional
  } catch (const ffi::Error& error) {
    std::printf("%s: %s\n", error.kind().c_str(), error.message().c_str());
    return on_gpu ? 1 : 0;
  }
  must(driver<int()>("cuCtxSynchronize")(), "cuCtxSynchronize");
  auto* copy = driver<int(void*, Address, std::size_t)>("cuMemcpyDtoH_v2");
  must(copy(y.data(), reinterpret_cast<Address>(memory[2]), y.size() * sizeof(float)), "cuMemcpyDtoH");

  double worst = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (std::size_t c = 0; c < cols; ++c) squares += static_cast<double>(x[r * cols + c]) * x[r * cols + c];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::size_t c = 0; c < cols; ++c) {
      const double wanted = x[r * cols + c] * rstd * weight[c];
      worst = std::fmax(worst, std::fabs(y[r * cols + c] - wanted) / std::fmax(1.0, std::fabs(wanted)));
    }
  }
  std::printf("%zu x %zu: largest error %.1e\n", rows, cols, worst);
  return worst < 1e-5 ? 0 : 1;
}

// LibTorch without a GPU, loaded in front of it: what its stable ABI says of a tensor's device is that it is CUDA's, and
// memory of a CUDA device is the CPU's. All else, the dispatcher and the tensors too, is LibTorch's own.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace {

template <typename Function>
Function own(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), name));
}

}  // namespace

extern "C" {

AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t* type) {
  static const auto cuda = own<decltype(&aoti_torch_device_type_cuda)>("aoti_torch_device_type_cuda");
  *type = cuda();
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t* index) {
  *index = 0;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* shape, const int64_t* strides, int32_t dtype, int32_t,
                                        int32_t, AtenTensorHandle* made) {
  static const auto function = own<decltype(&aoti_torch_empty_strided)>("aoti_torch_empty_strided");
  static const auto cpu = own<decltype(&aoti_torch_device_type_cpu)>("aoti_torch_device_type_cpu");
  return function(ndim, shape, strides, dtype, cpu(), 0, made);
}

AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = reinterpret_cast<void*>(7);
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"

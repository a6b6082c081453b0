#ifndef NORMGEN_FFI_CLIENT_H_
#define NORMGEN_FFI_CLIENT_H_

namespace normgen {
namespace ffi {
namespace {

using binding::Use;
using binding::kBatches;
using binding::kCols;
using binding::kInner;
using binding::kRows;
using tvm::ffi::Optional;

// Tensors as DLPack has them.
struct Client {
  using Tensor = DLTensor;

  static void* address(const Tensor& tensor) { return static_cast<char*>(tensor.data) + tensor.byte_offset; }
  static bool is_cuda(const Tensor& tensor) { return tensor.device.device_type == kDLCUDA; }
  static int number(const Tensor& tensor) { return tensor.device.device_id; }
  static bool is_stored(const Tensor& tensor, const binding::Stored& as) {
    return tensor.dtype.code == as.code && tensor.dtype.bits == as.bits && tensor.dtype.lanes == 1;
  }
  static std::string dtype(const Tensor& tensor) { return tvm::ffi::DLDataTypeToString(tensor.dtype); }
  static std::string device(const Tensor& tensor) {
    return "DLPack device type " + std::to_string(static_cast<int>(tensor.device.device_type)) +
           (tensor.device.device_type == kDLCPU ? ", which is the CPU" : "");
  }

  [[noreturn]] static void value_error(const std::string& text) {
    TVM_FFI_THROW(ValueError) << text;
    throw;  // not reached: the line above has thrown
  }
  [[noreturn]] static void type_error(const std::string& text) {
    TVM_FFI_THROW(TypeError) << text;
    throw;
  }
  [[noreturn]] static void runtime_error(const std::string& text) {
    TVM_FFI_THROW(RuntimeError) << text;
    throw;
  }
};

template <int kCount>
using Call = binding::Call<Client, kCount>;
using OnDevice = binding::OnDevice<Client>;

inline void check(const char* function, cudaError_t status) { binding::check<Client>(function, status); }
inline float number(const char* function, const char* name, double value, bool is_compared) {
  return binding::number<Client>(function, name, value, is_compared);
}

inline const DLTensor* given(const DLTensor* tensor) { return tensor; }
inline const DLTensor* given(const Optional<DLTensor*>& tensor) {
  return tensor.has_value() ? tensor.value() : nullptr;
}

// Scratch memory of one call: the framework's, which knows its streams, else the driver's, in the order of the stream.
class Scratch {
 public:
  Scratch(const char* function, std::size_t bytes, int device, cudaStream_t stream) : stream_(stream) {
    if (TVMFFIEnvGetDLPackManagedTensorAllocator() != nullptr) {
      int64_t size = static_cast<int64_t>(bytes > 0 ? bytes : 1);
      tensor_ = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::ShapeView(&size, 1),
                                               DLDataType{kDLUInt, 8, 1}, DLDevice{kDLCUDA, device});
      memory_ = (*tensor_).data_ptr();
    } else {
      check(function, cudaMallocAsync(&own_, bytes > 0 ? bytes : 1, stream));
      memory_ = own_;
    }
  }
  ~Scratch() {
    if (own_ != nullptr) static_cast<void>(cudaFreeAsync(own_, stream_));
  }
  Scratch(const Scratch&) = delete;

  void* memory() const { return memory_; }

 private:
  cudaStream_t stream_;
  void* own_ = nullptr;
  void* memory_ = nullptr;
  std::optional<tvm::ffi::Tensor> tensor_;
};

inline cudaStream_t stream_of(int device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
}

}  // namespace
}  // namespace ffi
}  // namespace normgen

#endif  // NORMGEN_FFI_CLIENT_H_

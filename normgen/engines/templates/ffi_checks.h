#ifndef NORMGEN_FFI_CHECKS_H_
#define NORMGEN_FFI_CHECKS_H_

namespace normgen {
namespace ffi {
namespace {

using tvm::ffi::Optional;

enum Axis : int { kRows, kCols, kInner, kBatches, kAxes };
constexpr const char* kAxisNames[kAxes] = {"rows", "cols", "inner", "batches"};

// A size of a tensor: `times` an axis `over` a number, rounded up.
struct Size {
  Axis axis;
  int times, over;
};

// What a function takes for one of its tensors.
struct Use {
  const char* name;
  const char* shape;  // as its reader writes it
  const char* dtype;
  DLDataType stored;
  bool leads;    // its first size is rows, which may be several sizes
  bool pitched;  // its lines lie a pitch apart; else it is contiguous
  int count;     // of `sizes`
  Size sizes[3];
};

inline const DLTensor* given(const DLTensor* tensor) { return tensor; }
inline const DLTensor* given(const Optional<DLTensor*>& tensor) {
  return tensor.has_value() ? tensor.value() : nullptr;
}

inline std::string listed(const int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

// The tensors of a call, checked against each other: their sizes, pitches and addresses.
template <int kCount>
class Call {
 public:
  Call(const char* function, const Use (&uses)[kCount], const DLTensor* const (&tensors)[kCount])
      : function_(function), uses_(uses), tensors_(tensors) {
    for (int i = 0; i < kCount; ++i) if (tensors_[i] != nullptr) meet(i);
    for (int i = 0; i < kCount; ++i) if (tensors_[i] != nullptr) fit(i);
    for (int axis = 0; axis < kAxes; ++axis) {
      if (sizes_[axis] == -1) sizes_[axis] = 1;  // no tensor that is there has it
      const int64_t least = axis == kRows || axis == kBatches ? 0 : 1;
      if (sizes_[axis] < least || sizes_[axis] > 0x7fffffff) {
        refuse(std::string(kAxisNames[axis]) + " is at least " + std::to_string(least) + " and less than 2^31",
               std::to_string(sizes_[axis]));
      }
    }
  }

  int size(Axis axis) const { return static_cast<int>(sizes_[axis]); }
  bool has(int i) const { return tensors_[i] != nullptr; }
  long long pitch(int i) const { return pitches_[i]; }
  int device() const { return device_; }

  template <typename T>
  T* at(int i) const {
    const DLTensor* tensor = tensors_[i];
    if (tensor == nullptr) return nullptr;
    return reinterpret_cast<T*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
  }

  // Rows of a batch; 1 where there are none.
  int rows_per_batch() const {
    const int64_t batches = sizes_[kBatches] > 0 ? sizes_[kBatches] : 1;
    if (sizes_[kRows] % batches != 0) {
      refuse("the batches have equally many rows",
             std::to_string(sizes_[kRows]) + " rows, " + std::to_string(batches) + " batches");
    }
    return sizes_[kRows] > 0 ? static_cast<int>(sizes_[kRows] / batches) : 1;
  }

  void require(bool holds, const char* rule, int64_t received) const {
    if (!holds) refuse(rule, std::to_string(received));
  }

  [[noreturn]] void refuse(const std::string& rule, const std::string& received) const {
    TVM_FFI_THROW(ValueError) << function_ << ": " << rule << "; received " << received;
    throw;  // not reached: the line above has thrown
  }

 private:
  std::string said(int i) const { return std::string("'") + uses_[i].name + "' is " + uses_[i].shape; }

  // What a tensor is alone; the first tensor that has an axis says how long it is.
  void meet(int i) {
    const Use& use = uses_[i];
    const DLTensor& tensor = *tensors_[i];
    if (tensor.device.device_type != kDLCUDA) {
      refuse(std::string("'") + use.name + "' is on a CUDA device",
             "DLPack device type " + std::to_string(static_cast<int>(tensor.device.device_type)) +
                 (tensor.device.device_type == kDLCPU ? ", which is the CPU" : ""));
    }
    const DLDataType& dtype = tensor.dtype;
    if (dtype.code != use.stored.code || dtype.bits != use.stored.bits || dtype.lanes != 1) {
      TVM_FFI_THROW(TypeError) << function_ << ": '" << use.name << "' is stored as " << use.dtype << "; received "
                               << tvm::ffi::DLDataTypeToString(dtype);
    }
    if (first_ >= 0 && tensor.device.device_id != device_) {
      refuse(std::string("all tensors are on the device of '") + uses_[first_].name + "', cuda:" +
                 std::to_string(device_), "'" + std::string(use.name) + "' on cuda:" + std::to_string(tensor.device.device_id));
    }
    if (first_ < 0) first_ = i, device_ = tensor.device.device_id;
    if (use.leads ? tensor.ndim < use.count : tensor.ndim != use.count) refuse(said(i), listed(tensor.shape, tensor.ndim));
    if (use.leads && leader_ < 0) {
      leader_ = i;
      sizes_[kRows] = 1;
      for (int d = 0; d < leading(i); ++d) sizes_[kRows] *= tensor.shape[d];
    }
    for (int s = use.leads ? 1 : 0; s < use.count; ++s) {
      const Size& size = use.sizes[s];
      if (size.times == 1 && size.over == 1 && sizes_[size.axis] < 0) {
        sizes_[size.axis] = tensor.shape[tensor.ndim - use.count + s];
        from_[size.axis] = i;
      }
    }
  }

  int leading(int i) const { return tensors_[i]->ndim - uses_[i].count + 1; }

  // What a tensor is beside the others, and where its lines lie.
  void fit(int i) {
    const Use& use = uses_[i];
    const DLTensor& tensor = *tensors_[i];
    if (use.leads) {
      bool same = leading(i) == leading(leader_);
      for (int d = 0; same && d < leading(i); ++d) same = tensor.shape[d] == tensors_[leader_]->shape[d];
      if (!same) {
        refuse(said(i) + " with the leading sizes of '" + uses_[leader_].name + "', " +
                   listed(tensors_[leader_]->shape, leading(leader_)), listed(tensor.shape, tensor.ndim));
      }
    }
    for (int s = use.leads ? 1 : 0; s < use.count; ++s) {
      const Size& size = use.sizes[s];
      if (sizes_[size.axis] < 0) continue;  // no tensor that is there has the axis alone
      const int64_t wanted = (sizes_[size.axis] * size.times + size.over - 1) / size.over;
      if (tensor.shape[tensor.ndim - use.count + s] != wanted) {
        const int from = from_[size.axis];
        refuse(said(i) + ", " + std::to_string(wanted) + " long along " + kAxisNames[size.axis] + " as '" +
                   uses_[from < 0 ? leader_ : from].name + "' is", listed(tensor.shape, tensor.ndim));
      }
    }
    lie(i);
  }

  void lie(int i) {
    const Use& use = uses_[i];
    const DLTensor& tensor = *tensors_[i];
    int64_t elements = 1, step = 1;
    for (int d = 0; d < tensor.ndim; ++d) elements *= tensor.shape[d];
    const int last = tensor.ndim - 1;
    pitches_[i] = use.pitched ? tensor.shape[last] : 0;
    if (elements == 0 || tensor.strides == nullptr) return;
    bool fits = true, begun = false;
    for (int d = last; d >= 0; --d) {
      if (tensor.shape[d] == 1 && !(use.pitched && d == last)) continue;
      if (use.pitched && d < last && !begun) {  // lines: the innermost of their sizes says how far they lie apart
        begun = true;
        pitches_[i] = step = tensor.strides[d];
        fits = fits && step >= tensor.shape[last];
      }
      fits = fits && (tensor.strides[d] == step || tensor.shape[d] == 1);
      step *= tensor.shape[d];
    }
    if (fits) return;
    refuse(std::string("'") + use.name + (use.pitched
               ? "' has its last axis contiguous and its lines equally far apart, none over another"
               : "' is contiguous"), "the strides " + listed(tensor.strides, tensor.ndim));
  }

  const char* function_;
  const Use (&uses_)[kCount];
  const DLTensor* const (&tensors_)[kCount];
  int64_t sizes_[kAxes] = {-1, -1, -1, -1};
  int from_[kAxes] = {-1, -1, -1, -1};
  long long pitches_[kCount] = {};
  int device_ = 0, first_ = -1, leader_ = -1;
};

// Raises RuntimeError for a launch that failed.
inline void check(const char* function, cudaError_t status) {
  if (status == cudaErrorMisalignedAddress) {
    TVM_FFI_THROW(ValueError) << function << ": rows and columns start at whole vectors of 16 bytes";
  }
  if (status != cudaSuccess) TVM_FFI_THROW(RuntimeError) << function << ": " << error_text(status);
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

#endif  // NORMGEN_FFI_CHECKS_H_

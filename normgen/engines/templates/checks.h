#ifndef NORMGEN_CHECKS_H_
#define NORMGEN_CHECKS_H_

namespace normgen {
namespace binding {
namespace {

enum Axis : int { kRows, kCols, kInner, kBatches, kAxes };
constexpr const char* kAxisNames[kAxes] = {"rows", "cols", "inner", "batches"};

// A size of a tensor: `times` an axis `over` a number, rounded up.
struct Size {
  Axis axis;
  int times, over;
};

// A number format: type code and bits of DLPack.
struct Stored {
  int code, bits;
};

// What a function takes for one of its tensors.
struct Use {
  const char* name;
  const char* shape;  // as its reader writes it
  const char* dtype;
  Stored stored;
  bool leads;    // its first size is rows, which may be several sizes
  bool pitched;  // its lines lie a pitch apart; else it is contiguous
  int count;     // of `sizes`
  Size sizes[3];
};

inline std::string listed(const int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

// The tensors of a call, checked against each other: their sizes, pitches and addresses. A `Client` says what a tensor
// is to it, and raises its errors.
template <class Client, int kCount>
class Call {
  using Tensor = typename Client::Tensor;

 public:
  Call(const char* function, const Use (&uses)[kCount], const Tensor* const (&tensors)[kCount])
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
    return tensors_[i] != nullptr ? static_cast<T*>(Client::address(*tensors_[i])) : nullptr;
  }

  // The shape of a tensor that the call makes.
  std::vector<int64_t> shape(const Use& use) const {
    std::vector<int64_t> found;
    if (use.leads && leader_ >= 0) found.assign(tensors_[leader_]->shape, tensors_[leader_]->shape + leading(leader_));
    for (int s = use.leads ? 1 : 0; s < use.count; ++s) {
      found.push_back((sizes_[use.sizes[s].axis] * use.sizes[s].times + use.sizes[s].over - 1) / use.sizes[s].over);
    }
    return found;
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
    Client::value_error(std::string(function_) + ": " + rule + "; received " + received);
  }

 private:
  std::string said(int i) const { return std::string("'") + uses_[i].name + "' is " + uses_[i].shape; }

  // What a tensor is alone; the first tensor that has an axis says how long it is.
  void meet(int i) {
    const Use& use = uses_[i];
    const Tensor& tensor = *tensors_[i];
    if (!Client::is_cuda(tensor)) refuse(std::string("'") + use.name + "' is on a CUDA device", Client::device(tensor));
    if (!Client::is_stored(tensor, use.stored)) {
      Client::type_error(std::string(function_) + ": '" + use.name + "' is stored as " + use.dtype + "; received " +
                         Client::dtype(tensor));
    }
    const int device = Client::number(tensor);
    if (first_ >= 0 && device != device_) {
      refuse(std::string("all tensors are on the device of '") + uses_[first_].name + "', cuda:" +
                 std::to_string(device_), "'" + std::string(use.name) + "' on cuda:" + std::to_string(device));
    }
    if (first_ < 0) first_ = i, device_ = device;
    if (use.leads ? tensor.ndim < use.count : tensor.ndim != use.count) refuse(said(i), listed(tensor.shape, tensor.ndim));
    if (use.leads && leader_ < 0) {
      leader_ = i;
      sizes_[kRows] = product(tensor.shape, leading(i));
    }
    for (int s = use.leads ? 1 : 0; s < use.count; ++s) {
      const Size& size = use.sizes[s];
      if (size.times == 1 && size.over == 1 && sizes_[size.axis] < 0) {
        sizes_[size.axis] = tensor.shape[tensor.ndim - use.count + s];
        from_[size.axis] = i;
      }
    }
  }

  // Of sizes; from 2^31 on it says 2^31, so that it does not wrap around. A size that is not positive is all.
  static int64_t product(const int64_t* sizes, int count) {
    constexpr int64_t kMost = int64_t{1} << 31;
    int64_t found = 1;
    for (int d = 0; d < count; ++d) if (sizes[d] <= 0) return sizes[d];
    for (int d = 0; d < count; ++d) found = sizes[d] < kMost && found < kMost ? found * sizes[d] : kMost;
    return found < kMost ? found : kMost;
  }

  int leading(int i) const { return tensors_[i]->ndim - uses_[i].count + 1; }

  // What a tensor is beside the others, and where its lines lie.
  void fit(int i) {
    const Use& use = uses_[i];
    const Tensor& tensor = *tensors_[i];
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
    const Tensor& tensor = *tensors_[i];
    int64_t step = 1;
    const int last = tensor.ndim - 1, bytes = use.stored.bits / 8;
    pitches_[i] = use.pitched ? tensor.shape[last] : 0;
    if (product(tensor.shape, tensor.ndim) == 0) return;
    if (bytes > 1 && reinterpret_cast<std::uintptr_t>(Client::address(tensor)) % bytes != 0) {
      refuse(std::string("'") + use.name + "' lies at a whole number of its elements' " + std::to_string(bytes) + " bytes",
             "an address that does not");
    }
    if (tensor.strides == nullptr) return;
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
  const Tensor* const (&tensors_)[kCount];
  int64_t sizes_[kAxes] = {-1, -1, -1, -1};
  int from_[kAxes] = {-1, -1, -1, -1};
  long long pitches_[kCount] = {};
  int device_ = 0, first_ = -1, leader_ = -1;
};

// A scalar as a kernel takes it. Of one that is compared with whole numbers float32 must not make another.
template <class Client>
inline float number(const char* function, const char* name, double value, bool is_compared) {
  if (!(value - value == 0)) return static_cast<float>(value);  // infinite, or no number
  const bool fits = std::fabs(value) <= std::numeric_limits<float>::max();
  const float found = fits ? static_cast<float>(value) : 0.0f;
  if (fits && !(is_compared && value == std::floor(value) && static_cast<double>(found) != value)) return found;
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  Client::value_error(std::string(function) + ": '" + name + "' is " +
                      (fits ? "compared with whole numbers, and one" : "a number") + " that float32 holds" +
                      (fits ? " exactly" : "") + "; received " + text);
}

// Raises an error for a launch that failed.
template <class Client>
inline void check(const char* function, cudaError_t status) {
  if (status == cudaErrorMisalignedAddress) {
    Client::value_error(std::string(function) + ": rows and columns start at whole vectors of 16 bytes");
  }
  if (status != cudaSuccess) Client::runtime_error(std::string(function) + ": " + error_text(status));
}

}  // namespace
}  // namespace binding
}  // namespace normgen

#endif  // NORMGEN_CHECKS_H_

#ifndef NORMGEN_RUNTIME_H_
#define NORMGEN_RUNTIME_H_

namespace normgen {
namespace binding {
namespace {

inline const char* error_text(cudaError_t status) { return cudaGetErrorString(status); }

// The tensors' device is the current one while this lives.
template <class Client>
class OnDevice {
 public:
  explicit OnDevice(int device) {
    status_ = cudaGetDevice(&before_);
    if (status_ == cudaSuccess && before_ != device) {
      status_ = cudaSetDevice(device);
      moved_ = status_ == cudaSuccess;
    }
  }
  ~OnDevice() {
    if (moved_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;

  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_ = cudaSuccess;
  int before_ = 0;
  bool moved_ = false;
};

}  // namespace
}  // namespace binding
}  // namespace normgen

#endif  // NORMGEN_RUNTIME_H_

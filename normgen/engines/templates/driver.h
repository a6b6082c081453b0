#ifndef NORMGEN_DRIVER_H_
#define NORMGEN_DRIVER_H_

// What the host part below asks of the CUDA runtime, by the driver: no library of CUDA is linked, and the driver is
// opened at the first call. Its types are declared here, as CUDA 12 and later have them in memory, so that no header of
// CUDA is needed.
namespace normgen {
namespace {

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
};
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUfunction = struct CUfunc_st*;
using CUkernel = struct CUkern_st*;
using CUlibrary = struct CUlib_st*;

enum CUlaunchAttributeID : int {
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

struct alignas(8) CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[4];
  union {
    char all[64];
    struct { unsigned x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed, cooperative;
  } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72, "as the driver reads it");

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};
static_assert(sizeof(CUlaunchConfig) == 56, "as the driver reads it");

using cudaError_t = CUresult;
using cudaStream_t = CUstream;
constexpr cudaError_t cudaSuccess = CUDA_SUCCESS;
constexpr cudaError_t cudaErrorInvalidValue = CUDA_ERROR_INVALID_VALUE;
constexpr cudaError_t cudaErrorNotSupported = CUDA_ERROR_INVALID_VALUE;
constexpr cudaError_t cudaErrorInvalidConfiguration = CUDA_ERROR_INVALID_VALUE;
constexpr cudaError_t cudaErrorMisalignedAddress = CUDA_ERROR_MISALIGNED_ADDRESS;

// The functions of the driver, of CUDA 12 and later.
struct Driver {
#define NORMGEN_DRIVER_FUNCTIONS                                                                            \
  NORMGEN_DRIVER(cuInit, "cuInit", unsigned)                                                                \
  NORMGEN_DRIVER(cuGetErrorString, "cuGetErrorString", CUresult, const char**)                              \
  NORMGEN_DRIVER(cuCtxGetDevice, "cuCtxGetDevice", CUdevice*)                                               \
  NORMGEN_DRIVER(cuCtxPushCurrent, "cuCtxPushCurrent_v2", CUcontext)                                        \
  NORMGEN_DRIVER(cuCtxPopCurrent, "cuCtxPopCurrent_v2", CUcontext*)                                         \
  NORMGEN_DRIVER(cuDeviceGet, "cuDeviceGet", CUdevice*, int)                                                \
  NORMGEN_DRIVER(cuDeviceGetAttribute, "cuDeviceGetAttribute", int*, int, CUdevice)                         \
  NORMGEN_DRIVER(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", CUcontext*, CUdevice)                \
  NORMGEN_DRIVER(cuLibraryLoadData, "cuLibraryLoadData", CUlibrary*, const void*, int*, void**, unsigned, int*, \
                 void**, unsigned)                                                                          \
  NORMGEN_DRIVER(cuLibraryGetKernel, "cuLibraryGetKernel", CUkernel*, CUlibrary, const char*)               \
  NORMGEN_DRIVER(cuKernelGetFunction, "cuKernelGetFunction", CUfunction*, CUkernel)                         \
  NORMGEN_DRIVER(cuKernelSetAttribute, "cuKernelSetAttribute", int, int, CUkernel, CUdevice)                \
  NORMGEN_DRIVER(cuLaunchKernelEx, "cuLaunchKernelEx", const CUlaunchConfig*, CUfunction, void**, void**)   \
  NORMGEN_DRIVER(cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters", int*, CUfunction,            \
                 const CUlaunchConfig*)                                                                     \
  NORMGEN_DRIVER(cuMemsetD8Async, "cuMemsetD8Async", CUdeviceptr, unsigned char, std::size_t, CUstream)     \
  NORMGEN_DRIVER(cuMemcpyAsync, "cuMemcpyAsync", CUdeviceptr, CUdeviceptr, std::size_t, CUstream)           \
  NORMGEN_DRIVER(cuMemAllocAsync, "cuMemAllocAsync", CUdeviceptr*, std::size_t, CUstream)                   \
  NORMGEN_DRIVER(cuMemFreeAsync, "cuMemFreeAsync", CUdeviceptr, CUstream)
#define NORMGEN_DRIVER(function, symbol, ...) CUresult (*function##_)(__VA_ARGS__);
  NORMGEN_DRIVER_FUNCTIONS
#undef NORMGEN_DRIVER
  const char* missing = nullptr;  // the function that the driver does not have; the library itself

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) missing = "libcuda.so.1";
#define NORMGEN_DRIVER(function, symbol, ...)                                                  \
  function##_ = library ? reinterpret_cast<decltype(function##_)>(dlsym(library, symbol)) : nullptr; \
  if (function##_ == nullptr && missing == nullptr) missing = symbol;
    NORMGEN_DRIVER_FUNCTIONS
#undef NORMGEN_DRIVER
#undef NORMGEN_DRIVER_FUNCTIONS
    if (missing == nullptr) static_cast<void>(cuInit_(0));
  }
};

inline const Driver& driver() {
  static const Driver found;
  return found;
}

// A kernel of an image: the host function that stands for it, and its name in the machine code.
struct Entry {
  const void* stand_in;
  const char* name;
  std::atomic<CUkernel> kernel{nullptr};

  Entry(const void* function, const char* named) : stand_in(function), name(named) {}
};

// Machine code of one GPU architecture, loaded once for all devices.
class Image {
 public:
  Image(const void* code, Entry* entries, int count) : code_(code), entries_(entries), count_(count), next_(first()) {
    first() = this;
  }
  Image(const Image&) = delete;

  // The kernel for which a host function stands.
  static cudaError_t find(const void* stand_in, CUkernel* kernel) {
    for (Image* image = first(); image != nullptr; image = image->next_) {
      for (int i = 0; i < image->count_; ++i) {
        if (image->entries_[i].stand_in == stand_in) return image->kernel_of(image->entries_[i], kernel);
      }
    }
    return CUDA_ERROR_NOT_FOUND;
  }

 private:
  static Image*& first() {
    static Image* images = nullptr;
    return images;
  }

  cudaError_t kernel_of(Entry& entry, CUkernel* kernel) {
    *kernel = entry.kernel.load(std::memory_order_acquire);
    if (*kernel != nullptr) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaError_t status = cudaSuccess;
    if (library_ == nullptr) {
      status = driver().cuLibraryLoadData_(&library_, code_, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }
    if (status == cudaSuccess) status = driver().cuLibraryGetKernel_(kernel, library_, entry.name);
    if (status == cudaSuccess) entry.kernel.store(*kernel, std::memory_order_release);
    return status;
  }

  const void* code_;
  Entry* entries_;
  int count_;
  Image* next_;
  CUlibrary library_ = nullptr;
  std::mutex mutex_;
};

struct dim3 {
  unsigned x, y = 1, z = 1;

  dim3(unsigned count = 1) : x(count) {}
};

enum {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative,
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,  // numbers of the driver
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};

struct cudaLaunchAttribute {
  int id;
  struct {
    struct { unsigned x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed, cooperative;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

// The same as the driver takes it.
struct DriverConfig {
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config = {};

  explicit DriverConfig(const cudaLaunchConfig_t& how) {
    config.gridDimX = how.gridDim.x, config.gridDimY = how.gridDim.y, config.gridDimZ = how.gridDim.z;
    config.blockDimX = how.blockDim.x, config.blockDimY = how.blockDim.y, config.blockDimZ = how.blockDim.z;
    config.sharedMemBytes = static_cast<unsigned>(how.dynamicSmemBytes);
    config.hStream = how.stream;
    config.attrs = attributes;
    for (unsigned i = 0; i < how.numAttrs; ++i) {
      CUlaunchAttribute& to = attributes[config.numAttrs++];
      const cudaLaunchAttribute& from = how.attrs[i];
      if (from.id == cudaLaunchAttributeClusterDimension) {
        to.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        to.value.clusterDim.x = from.val.clusterDim.x;
        to.value.clusterDim.y = from.val.clusterDim.y;
        to.value.clusterDim.z = from.val.clusterDim.z;
      } else if (from.id == cudaLaunchAttributeCooperative) {
        to.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        to.value.cooperative = from.val.cooperative;
      } else {
        to.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        to.value.programmaticStreamSerializationAllowed = from.val.programmaticStreamSerializationAllowed;
      }
    }
  }
  DriverConfig(const DriverConfig&) = delete;  // it points into itself
};

inline cudaError_t cudaGetDevice(int* device) {
  CUdevice found = 0;
  const cudaError_t status = driver().cuCtxGetDevice_(&found);
  *device = found;  // a CUdevice is the number of the device
  return status;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return driver().cuDeviceGetAttribute_(value, which, device);
}

inline cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  CUkernel kernel = nullptr;
  cudaError_t status = Image::find(function, &kernel);
  int device = 0;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  return driver().cuKernelSetAttribute_(which, value, kernel, device);
}

inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const cudaLaunchConfig_t* how) {
  CUkernel kernel = nullptr;
  CUfunction here = nullptr;  // the kernel in the current context
  cudaError_t status = Image::find(function, &kernel);
  if (status == cudaSuccess) status = driver().cuKernelGetFunction_(&here, kernel);
  if (status != cudaSuccess) return status;
  const DriverConfig config(*how);
  return driver().cuOccupancyMaxActiveClusters_(clusters, here, &config.config);
}

template <typename... Params, typename... Given>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*function)(Params...), Given... given) {
  CUkernel kernel = nullptr;
  const cudaError_t status = Image::find(reinterpret_cast<const void*>(function), &kernel);
  if (status != cudaSuccess) return status;
  const DriverConfig config(*how);
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&given))...};
  return driver().cuLaunchKernelEx_(&config.config, reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
}

// What the driver has by that name.
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };
inline cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** address, unsigned long long,
                                           cudaDriverEntryPointQueryResult* answer) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *address = library != nullptr ? dlsym(library, symbol) : nullptr;
  *answer = cudaDriverEntryPointSuccess;
  return *address != nullptr ? cudaSuccess : cudaErrorNotSupported;
}

inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return driver().cuMemsetD8Async_(reinterpret_cast<CUdeviceptr>(memory), static_cast<unsigned char>(value), bytes, stream);
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  const CUdeviceptr source = reinterpret_cast<CUdeviceptr>(from);
  return driver().cuMemcpyAsync_(reinterpret_cast<CUdeviceptr>(to), source, bytes, stream);
}

inline cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return driver().cuMemAllocAsync_(reinterpret_cast<CUdeviceptr*>(memory), bytes, stream);
}

inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return driver().cuMemFreeAsync_(reinterpret_cast<CUdeviceptr>(memory), stream);
}

}  // namespace

namespace binding {
namespace {

inline std::string error_text(cudaError_t status) {
  if (status == CUDA_ERROR_NO_BINARY_FOR_GPU) return "its machine code is for another GPU architecture than this one's";
  const char* text = nullptr;
  static_cast<void>(driver().cuGetErrorString_(status, &text));
  return text != nullptr ? text : "CUDA error " + std::to_string(static_cast<int>(status));
}

// The tensors' device is the current one while this lives: its primary context, which frameworks use too.
template <class Client>
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (driver().missing != nullptr) {
      Client::runtime_error(std::string("a kernel needs NVIDIA's driver of CUDA 12 or later; it lacks ") + driver().missing);
    }
    int current = 0;
    if (cudaGetDevice(&current) == cudaSuccess && current == device) return;
    CUdevice found = 0;
    CUcontext context = nullptr;
    status_ = driver().cuDeviceGet_(&found, device);
    if (status_ == cudaSuccess) status_ = driver().cuDevicePrimaryCtxRetain_(&context, found);  // kept until the end
    if (status_ == cudaSuccess) status_ = driver().cuCtxPushCurrent_(context);
    pushed_ = status_ == cudaSuccess;
  }
  ~OnDevice() {
    CUcontext context = nullptr;
    if (pushed_) static_cast<void>(driver().cuCtxPopCurrent_(&context));
  }
  OnDevice(const OnDevice&) = delete;

  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_ = cudaSuccess;
  bool pushed_ = false;
};

}  // namespace
}  // namespace binding
}  // namespace normgen

#endif  // NORMGEN_DRIVER_H_

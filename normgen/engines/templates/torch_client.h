#ifndef NORMGEN_TORCH_CLIENT_H_
#define NORMGEN_TORCH_CLIENT_H_

namespace normgen {
namespace torch_stable {
namespace {

using binding::Stored;
using binding::Use;
using binding::kBatches;
using binding::kCols;
using binding::kInner;
using binding::kRows;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A number format as LibTorch counts them.
struct Format {
  Stored stored;
  const char* name;
  int32_t (*code)();
};

constexpr Format kFormats[] = {
    {{2, 32}, "float32", aoti_torch_dtype_float32},
    {{2, 16}, "float16", aoti_torch_dtype_float16},
    {{4, 16}, "bfloat16", aoti_torch_dtype_bfloat16},
    {{10, 8}, "float8_e4m3fn", aoti_torch_dtype_float8_e4m3fn},
    {{12, 8}, "float8_e5m2", aoti_torch_dtype_float8_e5m2},
#if TORCH_TARGET_VERSION >= NORMGEN_TORCH(2, 11)
    {{14, 8}, "float8_e8m0fnu", torch_dtype_float8_e8m0fnu},
#endif
    {{0, 8}, "int8", aoti_torch_dtype_int8},
    {{0, 16}, "int16", aoti_torch_dtype_int16},
    {{0, 32}, "int32", aoti_torch_dtype_int32},
    {{0, 64}, "int64", aoti_torch_dtype_int64},
    {{1, 8}, "uint8", aoti_torch_dtype_uint8},
    {{6, 8}, "bool", aoti_torch_dtype_bool},
    {{2, 64}, "float64", aoti_torch_dtype_float64},
};

inline int32_t code_of(const Stored& stored) {
  for (const Format& format : kFormats) {
    if (format.stored.code == stored.code && format.stored.bits == stored.bits) return format.code();
  }
  return -1;
}

inline std::string name_of(int32_t code) {
  for (const Format& format : kFormats) {
    if (format.code() == code) return format.name;
  }
  return "dtype " + std::to_string(code);
}

inline int32_t code_of(ScalarType dtype) {
  return torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
}

// A tensor of a call: its rows lie at one distance, all else without gaps.
struct View {
  Tensor tensor;
  int32_t dtype = -1, device_type = -1, device = -1;
  int ndim = 0;
  const int64_t *shape = nullptr, *strides = nullptr;
  std::vector<int64_t> folded[2];

  View(const Tensor& given, const Use& use) : tensor(regular(given, use.pitched)) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device_type));
    device = tensor.get_device_index();
    ndim = static_cast<int>(tensor.dim());
    shape = tensor.sizes().data(), strides = tensor.strides().data();
    if (use.leads || ndim <= use.count || !tensor.is_contiguous()) return;
    // [1] of one number, [batches, 1, cols] of batches: the sizes before the last are one.
    const int64_t last = use.count > 0 ? shape[ndim - 1] : 1;
    const int64_t lines = last > 0 ? tensor.numel() / last : 0;
    if (use.count == 2) folded[0] = {lines, last}, folded[1] = {last, 1};
    if (use.count == 2 || (use.count == 0 && lines == 1)) {
      ndim = use.count, shape = folded[0].data(), strides = folded[1].data();
    }
  }
  View(const View&) = delete;

 private:
  static Tensor regular(const Tensor& given, bool pitched) {
    if (given.is_contiguous()) return given;
    const int64_t last = given.dim() - 1;
    bool fits = pitched && last > 0 && given.stride(last) == 1 && given.stride(last - 1) >= given.size(last);
    for (int64_t d = 0; fits && d < last - 1; ++d) fits = given.stride(d) == given.stride(d + 1) * given.size(d + 1);
    return fits ? given : torch::stable::contiguous(given);
  }
};

struct Client {
  using Tensor = View;

  static void* address(const View& view) { return view.tensor.data_ptr(); }
  static bool is_cuda(const View& view) { return view.device_type == aoti_torch_device_type_cuda(); }
  static int number(const View& view) { return view.device; }
  static bool is_stored(const View& view, const Stored& as) { return view.dtype == code_of(as); }
  static std::string dtype(const View& view) { return name_of(view.dtype); }
  static std::string device(const View& view) {
    return view.device_type == aoti_torch_device_type_cpu() ? "one on the CPU"
                                                            : "one on device type " + std::to_string(view.device_type);
  }

  [[noreturn]] static void value_error(const std::string& text) { throw std::runtime_error(text); }
  [[noreturn]] static void type_error(const std::string& text) { throw std::runtime_error(text); }
  [[noreturn]] static void runtime_error(const std::string& text) { throw std::runtime_error(text); }
};

template <int kCount>
using Call = binding::Call<Client, kCount>;
using OnDevice = binding::OnDevice<Client>;

inline void check(const char* function, cudaError_t status) { binding::check<Client>(function, status); }
inline float number(const char* function, const char* name, double value, bool is_compared) {
  return binding::number<Client>(function, name, value, is_compared);
}

inline Tensor empty(const std::vector<int64_t>& shape, int32_t dtype, int device) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int d = static_cast<int>(shape.size()) - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * (shape[d + 1] > 1 ? shape[d + 1] : 1);
  }
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides.data(),
                                                         dtype, aoti_torch_device_type_cuda(), device, &made));
  return Tensor(made);
}

// The stream of LibTorch on a device. Its part for CUDA is asked by name, so that a LibTorch without it loads the
// library too: programs are exported there.
inline cudaStream_t stream_of(const char* function, int device) {
  using StreamOf = AOTITorchError (*)(int32_t, void**);
  static const StreamOf current = [] {
    const char* name = "aoti_torch_get_current_cuda_stream";
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr) {  // Python loads LibTorch for itself alone
      if (void* part = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(part, name);
    }
    return reinterpret_cast<StreamOf>(found);
  }();
  if (current == nullptr) Client::runtime_error(std::string(function) + ": a kernel needs a LibTorch with CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(current(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

// What an operator is called with, in its order; an absent tensor is null.
struct Arguments {
  const char* function;
  const Tensor* const* tensors;
  const double* scalars;
  int32_t out;         // the dtype of the results that follow an input
  const bool* asked;   // of each result of its spec: whether it is returned
};

// The results of a spec. What is not asked for is null where a kernel takes that.
template <int kCount>
class Results {
 public:
  template <int kReads>
  void make(const Arguments& with, const Call<kReads>& call, const Use (&uses)[kCount],
            const bool (&nullable)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      if (!with.asked[i] && nullable[i]) continue;
      const std::vector<int64_t> shape = call.shape(uses[i]);
      pitches_[i] = shape.empty() ? 0 : shape.back();
      found_[i] = empty(shape, code_of(uses[i].stored), call.device());
    }
  }
  // As a program's tracer has them: of the sizes of its symbols, without memory.
  void like(const Arguments& with, const Tensor& first, const Use (&uses)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      if (with.asked[i]) found_[i] = like(first, uses[i]);
    }
  }

  template <typename T>
  T* at(int i) const { return found_[i] ? static_cast<T*>(found_[i]->data_ptr()) : nullptr; }
  long long pitch(int i) const { return pitches_[i]; }
  const Tensor& operator[](int i) const { return *found_[i]; }

 private:
  // Rows have a size for each leading one of the first tensor; behind it columns, or groups of these, or nothing.
  static Tensor like(const Tensor& first, const Use& use) {
    using torch::stable::detail::from;
    const uint64_t built = TORCH_ABI_VERSION;
    Tensor sized = first;
    if (use.count == 1) {
      StableIValue stack[] = {from(first), from(int64_t{-1}), from(int64_t{0})};
      TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::select", "int", stack, built));
      sized = torch::stable::detail::to<Tensor>(stack[0]);
    } else if (use.sizes[1].over > 1) {
      StableIValue stack[] = {from(first), from(int64_t{-1}), from(std::nullopt), from(std::nullopt),
                              from(int64_t{use.sizes[1].over})};
      TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::slice", "Tensor", stack, built));
      sized = torch::stable::detail::to<Tensor>(stack[0]);
    }
    const auto dtype = torch::stable::detail::to<ScalarType>(from(code_of(use.stored)));
    const std::optional<torch::headeronly::MemoryFormat> order = torch::headeronly::MemoryFormat::Contiguous;
    StableIValue stack[] = {from(sized), from(std::optional<ScalarType>(dtype)), from(std::nullopt), from(std::nullopt),
                            from(std::nullopt), from(order)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", stack, built));
    return torch::stable::detail::to<Tensor>(stack[0]);
  }

  std::optional<Tensor> found_[kCount];
  long long pitches_[kCount] = {};
};

// One header of a spec: the dtypes that it takes.
template <int kReads, int kResults>
struct Header {
  const char* name;
  const Use (&reads)[kReads];
  const Use (&results)[kResults];
  int follows;  // the first result whose dtype the caller says; -1: there is none
  void (*run)(const Arguments&, Results<kResults>&);

  bool takes(const Arguments& with) const {
    for (int i = 0; i < kReads; ++i) {
      if (with.tensors[i] == nullptr) continue;
      int32_t dtype = -1;
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(with.tensors[i]->get(), &dtype));
      if (dtype != code_of(reads[i].stored)) return false;
    }
    return follows < 0 || with.out == code_of(results[follows].stored);
  }
  std::string said() const {
    std::string text;
    for (const Use& use : reads) text += std::string(text.empty() ? "" : ", ") + use.name + " " + use.dtype;
    return text + (follows < 0 ? "" : std::string(" -> ") + results[follows].dtype);
  }
};

// The header that takes a call's dtypes.
template <int kReads, int kResults, int kHeaders>
const Header<kReads, kResults>& header_of(const Arguments& with, const Header<kReads, kResults> (&headers)[kHeaders]) {
  std::string known, received;
  for (const Header<kReads, kResults>& header : headers) {
    if (header.takes(with)) return header;
    known += (known.empty() ? "" : "; or ") + header.said();
  }
  for (int i = 0; i < kReads; ++i) {
    if (with.tensors[i] == nullptr) continue;
    int32_t dtype = -1;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(with.tensors[i]->get(), &dtype));
    received += (received.empty() ? "" : ", ") + std::string(headers[0].reads[i].name) + " " + name_of(dtype);
  }
  Client::type_error(std::string(with.function) + ": this library has kernels of " + known + "; received " + received +
                     (headers[0].follows < 0 ? "" : " -> " + name_of(with.out)));
}

template <int kReads, int kResults, int kHeaders>
Results<kResults> ran(const Arguments& with, const Header<kReads, kResults> (&headers)[kHeaders]) {
  Results<kResults> made;
  header_of(with, headers).run(with, made);
  return made;
}

template <int kReads, int kResults, int kHeaders>
Results<kResults> traced(const Arguments& with, const Header<kReads, kResults> (&headers)[kHeaders], int first) {
  Results<kResults> made;
  made.like(with, *with.tensors[first], header_of(with, headers).results);
  return made;
}

inline const Tensor* given(const Tensor& tensor) { return &tensor; }
inline const Tensor* given(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Whether the operator is this library's. A process has one of a name: the first one stays, as an error while a library
// is loaded ends the process.
inline bool defined(torch::stable::detail::StableLibrary& library, const char* schema) {
  try {
    library.def(schema);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

inline void say(const std::string& others) {
  if (others.empty()) return;
  std::cerr << "normgen: this process has operators of these names, which stay:" << others
            << ". A library that is built with -DNORMGEN_TORCH_NAMESPACE=name has its own.\n";
}

}  // namespace
}  // namespace torch_stable
}  // namespace normgen

#endif  // NORMGEN_TORCH_CLIENT_H_

// Calls an exported function for the program of fake_cudart.cpp, which is compiled once for all headers: no line here
// needs the standard library's streams and containers, which nvcc takes 2 s to read.
// -DHEADER="name.cu" -DFUNCTION=its_pitched_function [-DWORKSPACE=its_function]
#include HEADER

#include <type_traits>
#include <utility>

#include "driver.h"

template <typename T>
T as(long long value) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value);
  else if constexpr (std::is_same_v<T, float>) return static_cast<float>(value);
  else return static_cast<T>(value);
}

template <typename... Params, std::size_t... kIndex>
cudaError_t call(cudaError_t (*function)(Params...), const long long* values, std::size_t count,
                 std::index_sequence<kIndex...>) {
  return count == sizeof...(Params) ? function(as<Params>(values[kIndex])...) : cudaErrorUnknown;
}

template <typename... Params>
cudaError_t call(cudaError_t (*function)(Params...), const long long* values, std::size_t count) {
  return call(function, values, count, std::index_sequence_for<Params...>());
}

int called(const long long* values, std::size_t count) { return call(FUNCTION, values, count); }

std::size_t workspace_bytes(int rows, int cols) {
#ifdef WORKSPACE
  return WORKSPACE(rows, cols);
#else
  return static_cast<std::size_t>(rows - rows + cols - cols);
#endif
}

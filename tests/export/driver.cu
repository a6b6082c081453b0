// Calls an exported function with made-up pointers, on the runtime of fake_cudart.cpp, as stdin says:
//   kernels                                  -> the kernels of the program
//   sizes KERNEL DIGITS                         bytes of its arguments
//   device NUMBER SM_COUNT PASS CLUSTERS
//   call WORKSPACE ARGUMENTS                 -> what the runtime was asked, then "= status"
//   workspace ROWS COLS                      -> "= bytes"
// -DHEADER="name.cu" -DFUNCTION=its_pitched_function [-DWORKSPACE=its_function]
#include HEADER

#include <cstring>
#include <iostream>
#include <sstream>
#include <utility>

#include "fake_cudart.h"

template <typename T>
T as(long long value) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value);
  else if constexpr (std::is_same_v<T, float>) return static_cast<float>(value);
  else return static_cast<T>(value);
}

template <typename... Params, std::size_t... kIndex>
cudaError_t call(cudaError_t (*function)(Params...), const std::vector<long long>& values,
                 std::index_sequence<kIndex...>) {
  return function(as<Params>(values.at(kIndex))...);
}

template <typename... Params>
cudaError_t call(cudaError_t (*function)(Params...), const std::vector<long long>& values) {
  return call(function, values, std::index_sequence_for<Params...>());
}

int main() {
  for (std::string line, what; std::getline(std::cin, line);) {
    std::istringstream words(line);
    words >> what;
    if (what == "kernels") {
      for (const std::string& name : registered()) std::cout << name << "\n";
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
      const cudaError_t status = call(FUNCTION, values);
      std::cout << "= " << status << "\n";
#ifdef WORKSPACE
    } else if (what == "workspace") {
      int rows = 0, cols = 0;
      words >> rows >> cols;
      const std::size_t bytes = WORKSPACE(rows, cols);
      std::cout << "= " << bytes << "\n";
#endif
    }
  }
}

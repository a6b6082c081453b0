// A program of PyTorch without Python: a package of AOTInductor, which calls operators of a library of normgen's.
//
//   normgen export --torch-stable                      # normgen_torch.cu, and from it libnormgen_torch.so
//   ./torch_aoti ./libnormgen_torch.so model.pt2 input.pt output.pt
//
// The package is of torch._inductor.aoti_compile_and_package(torch.export.export(model, ...)), where `model` calls
// normgen.torch, or torch.ops.normgen of the library. `input.pt` is of torch.save(tensor, ...); torch.load reads the
// output. It is built against LibTorch, or Python's package torch, in the folder TORCH:
//
//   c++ -std=c++17 -O2 -I $TORCH/include -I $TORCH/include/torch/csrc/api/include torch_aoti.cpp -L $TORCH/lib
//       -Wl,--no-as-needed -ltorch -ltorch_cpu -ltorch_cuda -lc10 -ldl -Wl,-rpath,$TORCH/lib -o torch_aoti
//
// -ltorch_cuda is left out where LibTorch is without CUDA.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int count, char** words) {
  if (count != 5) {
    std::cerr << "usage: torch_aoti LIBRARY PACKAGE INPUT OUTPUT\n";
    return 2;
  }
  if (dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {  // it registers its operators, and stays
    std::cerr << dlerror() << "\n";
    return 1;
  }
  try {
    std::ifstream file(words[3], std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    torch::inductor::AOTIModelPackageLoader model(words[2]);
    const std::vector<at::Tensor> found = model.run({torch::jit::pickle_load(bytes).toTensor()});
    const std::vector<char> made = torch::jit::pickle_save(found.at(0));
    std::ofstream(words[4], std::ios::binary).write(made.data(), static_cast<std::streamsize>(made.size()));
    std::cout << found.at(0).sizes() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}

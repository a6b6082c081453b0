// What fake_cudart.cpp answers.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

struct Fake {
  bool answers = true;  // there is a device
  int device = 0, sm_count = 132, clusters = 1000;
  int pass = 90;  // of nvcc, that the code for the device comes from; 0: there is no code for it
  void* workspace = nullptr;
  std::map<std::string, std::string> sizes;  // kernel -> the bytes of each argument, a digit each
};

extern Fake fake;
std::vector<std::string> registered();  // all kernels of the program, as the linker names them

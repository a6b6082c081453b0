#pragma once  // TensorMap

// What the copy engine is told of a matrix in memory, and of boxes of it: the driver encodes it.
struct TensorMap {
  __attribute__((aligned(64))) unsigned long long content[16];
};

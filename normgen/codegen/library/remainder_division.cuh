#pragma once  // RemainderDivision

#include "divide_by_remainder.cuh"

// Values of rows are multiplied by the length's reciprocal, which the remainder corrects: half the instructions.
struct RemainderDivision {
  static __device__ __forceinline__ float of(float value, int length) {
    return divide_by_remainder(value, length, 1.0f / length);
  }
};

#pragma once  // IeeeDivision

// Values of rows are divided by a length as IEEE 754 says.
struct IeeeDivision {
  static __device__ __forceinline__ float of(float value, int length) { return value / length; }
};

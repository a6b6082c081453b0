#pragma once  // power

// x to a whole power, by repeated squaring.
template <int kExponent>
__device__ __forceinline__ float power(float x) {
  float product = kExponent % 2 == 1 ? x : 1.0f;
  #pragma unroll
  for (int left = kExponent / 2; left > 0; left /= 2) {
    x *= x;
    if (left % 2 == 1) product *= x;
  }
  return product;
}

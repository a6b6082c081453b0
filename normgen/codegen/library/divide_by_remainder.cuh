#pragma once  // divide_by_remainder

// a / b, inverse being 1 / b: the product and what it leaves of a, times the inverse once more. An IEEE division gives
// the same but for a few ties and subnormals, in twice as many instructions. Where b is an infinity, or the product or
// the inverse overflow, what is left is not finite, and the product is right.
__device__ __forceinline__ float divide_by_remainder(float a, float b, float inverse) {
  const float product = a * inverse;
  const float left = fmaf(-product, b, a);
  return fabsf(left) <= 3.402823466e38f ? fmaf(left, inverse, product) : product;
}

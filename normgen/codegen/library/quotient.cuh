#pragma once  // quotient

// n / d of a number n that is not negative, by 2^64 / d rounded up (0: by 1): two multiplications. A division of whole
// numbers takes some twenty instructions one behind the other, a reciprocal and two conversions among them.
__device__ __forceinline__ int quotient(int n, unsigned long long inverse) {
  const unsigned long long wide = static_cast<unsigned>(n);
  const unsigned long long below = static_cast<unsigned>(inverse) * wide >> 32;
  return inverse == 0 ? n : static_cast<int>(((inverse >> 32) * wide + below) >> 32);
}

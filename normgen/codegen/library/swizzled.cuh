#pragma once  // swizzled

// Where in a tile of lines of kLine elements of 16 bits one lies: pieces of 8 change places within their line,
// so that those of 8 lines below each other lie in banks of their own.
template <int kLine>
__device__ __forceinline__ unsigned swizzled(unsigned line, unsigned place) {
  constexpr unsigned kKinds = kLine < 64 ? kLine / 8 : 8;
  const unsigned kind = line / (8 / kKinds) % kKinds;
  return line * kLine + (place ^ kind * 8);
}

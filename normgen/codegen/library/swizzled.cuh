#pragma once  // swizzled

// Where in a tile of lines of kLine elements of 16 bits one lies: pieces of 8 change places within their line,
// so that those of 8 lines below each other lie in banks of their own.
template <int kLine>
__device__ __forceinline__ int swizzled(int line, int place) {
  constexpr int kKinds = kLine < 64 ? kLine / 8 : 8;
  const int piece = place / 8 ^ line / (8 / kKinds) % kKinds;
  return line * kLine + piece * 8 + place % 8;
}

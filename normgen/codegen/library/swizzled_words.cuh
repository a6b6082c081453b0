#pragma once  // swizzled_words

// Where in a tile of lines of kLine elements of 32 bits one lies: pieces of 4 change places within their line,
// so that those of 8 lines below each other lie in banks of their own.
template <int kLine>
__device__ __forceinline__ unsigned swizzled_words(unsigned line, unsigned place) {
  constexpr unsigned kKinds = kLine < 32 ? kLine / 4 : 8;
  const unsigned kind = line / (8 / kKinds) % kKinds;
  return line * kLine + (place ^ kind * 4);
}

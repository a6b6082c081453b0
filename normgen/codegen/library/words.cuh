#pragma once  // WordOf, Word, split, join

// The widest type that memory of that many bytes is accessed as, and its bits in registers.
template <int kBytes> struct WordOf { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<1> { using type = unsigned char; };
template <int kBytes> using Word = typename WordOf<kBytes>::type;

__device__ __forceinline__ void split(unsigned char word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(unsigned short word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(unsigned word, unsigned* bits) { bits[0] = word; }
__device__ __forceinline__ void split(uint2 word, unsigned* bits) { bits[0] = word.x; bits[1] = word.y; }
__device__ __forceinline__ void split(uint4 word, unsigned* bits) {
  bits[0] = word.x; bits[1] = word.y; bits[2] = word.z; bits[3] = word.w;
}
template <int kBytes>
__device__ __forceinline__ Word<kBytes> join(const unsigned* bits) {
  if constexpr (kBytes == 16) return make_uint4(bits[0], bits[1], bits[2], bits[3]);
  else if constexpr (kBytes == 8) return make_uint2(bits[0], bits[1]);
  else return static_cast<Word<kBytes>>(bits[0]);
}

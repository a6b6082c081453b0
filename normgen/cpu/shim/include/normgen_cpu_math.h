// Arithmetic and stored number formats of the shim.
#pragma once

NORMGEN_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
NORMGEN_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
NORMGEN_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
NORMGEN_INLINE float __expf(float x) { return expf(x); }
NORMGEN_INLINE float exp_approximate(float x) {
  const float value = expf(x * 1.442695041f * 0.6931471806f);  // rounds the exponent as the hardware's form does
  return value < 1.17549435e-38f ? 0.0f : value;
}
// As rcp.approx.ftz: a subnormal is 0 of its sign, on the way in and on the way out.
NORMGEN_INLINE float normgen_cpu_flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
NORMGEN_INLINE float reciprocal_approximate(float x) { return normgen_cpu_flushed(1.0f / normgen_cpu_flushed(x)); }
NORMGEN_INLINE float __logf(float x) { return logf(x); }
NORMGEN_INLINE float __log2f(float x) { return log2f(x); }
NORMGEN_INLINE float __fdividef(float x, float y) { return x / y; }
NORMGEN_INLINE float __fdiv_rn(float x, float y) { return x / y; }
NORMGEN_INLINE float __frcp_rn(float x) { return 1.0f / x; }
NORMGEN_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
NORMGEN_INLINE float __fadd_rn(float x, float y) { return x + y; }
NORMGEN_INLINE float __fmul_rn(float x, float y) { return x * y; }

NORMGEN_INLINE float __uint_as_float(unsigned bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
NORMGEN_INLINE unsigned __float_as_uint(float value) { unsigned bits; __builtin_memcpy(&bits, &value, 4); return bits; }
NORMGEN_INLINE float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
NORMGEN_INLINE int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }
NORMGEN_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32) | low) >> (shift & 31u));
}
NORMGEN_INLINE int __popc(unsigned bits) { return __builtin_popcount(bits); }
NORMGEN_INLINE int __ffs(int bits) { return __builtin_ffs(bits); }
NORMGEN_INLINE int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }

// min.f32 and max.f32: of a NaN, a signalling one too, the other operand, of two NaNs the canonical one; -0 is below 0.
NORMGEN_INLINE float normgen_cpu_fminf(float a, float b) {
  if (a != a || b != b) return a == a ? a : b == b ? b : __uint_as_float(0x7FFFFFFFu);
  return a < b || (a == b && __float_as_uint(a) >> 31) ? a : b;
}
NORMGEN_INLINE float normgen_cpu_fmaxf(float a, float b) {
  if (a != a || b != b) return a == a ? a : b == b ? b : __uint_as_float(0x7FFFFFFFu);
  return a < b || (a == b && __float_as_uint(a) >> 31) ? b : a;
}
#define fminf normgen_cpu_fminf
#define fmaxf normgen_cpu_fmaxf

#define NORMGEN_MIN_MAX(type)                                               \
  NORMGEN_INLINE constexpr type min(type a, type b) { return b < a ? b : a; } \
  NORMGEN_INLINE constexpr type max(type a, type b) { return a < b ? b : a; }
NORMGEN_MIN_MAX(int)
NORMGEN_MIN_MAX(unsigned)
NORMGEN_MIN_MAX(long)
NORMGEN_MIN_MAX(unsigned long)
NORMGEN_MIN_MAX(long long)
NORMGEN_MIN_MAX(unsigned long long)
NORMGEN_INLINE float min(float a, float b) { return fminf(a, b); }
NORMGEN_INLINE float max(float a, float b) { return fmaxf(a, b); }
// CUDA mixes int and unsigned in min and max: the result is unsigned.
NORMGEN_INLINE constexpr unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
NORMGEN_INLINE constexpr unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
NORMGEN_INLINE constexpr unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
NORMGEN_INLINE constexpr unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }

NORMGEN_INLINE float half_to_float(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 0x1Fu, fraction = half & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08f;
    return __uint_as_float(__float_as_uint(magnitude) | sign);
  }
  if (exponent == 0x1Fu) return __uint_as_float(sign | 0x7F800000u | fraction << 13);
  return __uint_as_float(sign | (exponent + 112u) << 23 | fraction << 13);
}

NORMGEN_INLINE unsigned short float_to_half(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FFFu;                                            // NaN
  if (magnitude >= 0x477FF000u) return static_cast<unsigned short>(sign | 0x7C00u);       // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves round-to-nearest-even multiples of 2^-24 in the low bits
    const unsigned rounded = __float_as_uint(__uint_as_float(magnitude) + 0.5f);
    return static_cast<unsigned short>(sign | (rounded - 0x3F000000u));
  }
  const unsigned rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<unsigned short>(sign | (rounded - 0x38000000u) >> 13);
}

NORMGEN_INLINE unsigned short float_to_bfloat16(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFFu;  // NaN
  return static_cast<unsigned short>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// An 8-bit float of `fraction` bits behind the point whose smallest normal number is 2^least: to nearest, ties to even.
NORMGEN_INLINE unsigned float_to_float8(float value, int fraction, int least, float largest, unsigned last) {
  const unsigned sign = __float_as_uint(value) >> 31 << 7;
  if (value != value) return sign | 0x7Fu;
  const float size = fminf(fabsf(value), largest);  // what is too large becomes the largest number
  const int exponent = static_cast<int>(__float_as_uint(size) >> 23) - 127;
  const int scale = (exponent < least ? least : exponent) - fraction;  // of the last place
  const float places = rintf(size * __int_as_float((127 - scale) << 23));
  const unsigned bits = static_cast<unsigned>((scale + fraction - least) << fraction) + static_cast<unsigned>(places);
  return sign | (bits < last ? bits : last);
}
NORMGEN_INLINE float float8_to_float(unsigned bits, int fraction, int least) {
  const unsigned one = 1u << fraction, exponent = (bits & 0x7Fu) >> fraction, rest = bits & (one - 1u);
  const float places = static_cast<float>(exponent == 0 ? rest : one + rest);
  const float size = places * __int_as_float((127 + least - fraction + static_cast<int>(exponent ? exponent - 1 : 0)) << 23);
  return bits & 0x80u ? -size : size;
}
NORMGEN_INLINE unsigned floats_to_e4m3x2(float low, float high) {
  return float_to_float8(low, 3, -6, 448.0f, 0x7Eu) | float_to_float8(high, 3, -6, 448.0f, 0x7Eu) << 8;
}
NORMGEN_INLINE unsigned floats_to_e5m2x2(float low, float high) {
  return float_to_float8(low, 2, -14, 57344.0f, 0x7Bu) | float_to_float8(high, 2, -14, 57344.0f, 0x7Bu) << 8;
}
NORMGEN_INLINE float e4m3_to_float(unsigned bits) {
  return (bits & 0x7Fu) == 0x7Fu ? __uint_as_float(0x7FFFFFFFu) : float8_to_float(bits, 3, -6);
}
NORMGEN_INLINE float e5m2_to_float(unsigned bits) { return half_to_float(static_cast<unsigned short>(bits << 8)); }

// cvt.rni.sat: to nearest even, the nearest end of the range, 0 for NaN.
NORMGEN_INLINE float normgen_cpu_whole(float value, float least, float largest) {
  return value != value ? 0.0f : fminf(fmaxf(rintf(value), least), largest);
}
NORMGEN_INLINE unsigned normgen_cpu_byte(float value, float least, float largest) {
  return static_cast<unsigned>(static_cast<int>(normgen_cpu_whole(value, least, largest))) & 0xFFu;
}
NORMGEN_INLINE unsigned floats_to_int8x2(float low, float high, unsigned next) {
  return normgen_cpu_byte(low, -128.0f, 127.0f) | normgen_cpu_byte(high, -128.0f, 127.0f) << 8 | next << 16;
}
NORMGEN_INLINE unsigned floats_to_uint8x2(float low, float high, unsigned next) {
  return normgen_cpu_byte(low, 0.0f, 255.0f) | normgen_cpu_byte(high, 0.0f, 255.0f) << 8 | next << 16;
}
NORMGEN_INLINE int float_to_int32(float value) {
  return value >= 2147483648.0f ? 2147483647 : static_cast<int>(normgen_cpu_whole(value, -2147483648.0f, 2147483520.0f));
}
NORMGEN_INLINE long long float_to_int64(float value) {
  if (value >= 9223372036854775808.0f) return 9223372036854775807LL;
  return static_cast<long long>(normgen_cpu_whole(value, -9223372036854775808.0f, 9223371487098961920.0f));
}

// IEEE 754-2019 maximum and minimum: NaN if either operand is NaN.
NORMGEN_INLINE float maximum(float a, float b) { return a > b || a != a ? a : b; }
NORMGEN_INLINE float minimum(float a, float b) { return a < b || a != a ? a : b; }

NORMGEN_INLINE unsigned floats_to_half2(float low, float high) {
  return float_to_half(low) | static_cast<unsigned>(float_to_half(high)) << 16;
}

NORMGEN_INLINE unsigned floats_to_bfloat162(float low, float high) {
  return float_to_bfloat16(low) | static_cast<unsigned>(float_to_bfloat16(high)) << 16;
}

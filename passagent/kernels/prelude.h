// What every cpp_kernel source sees: fixed-width integers, <cmath>, half types, and math functions that
// `#pragma omp simd` loops vectorise through libmvec without -ffast-math (so inf and NaN keep their meaning).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <omp.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define PASSAGENT_SIMD_MATH(f) \
  extern "C" __attribute__((simd("notinbranch"), const)) float f(float) noexcept;
#if defined(__x86_64__) && defined(__GLIBC__)
PASSAGENT_SIMD_MATH(expf)
PASSAGENT_SIMD_MATH(logf)
PASSAGENT_SIMD_MATH(sinf)
PASSAGENT_SIMD_MATH(cosf)
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
PASSAGENT_SIMD_MATH(erff)
PASSAGENT_SIMD_MATH(tanhf)
PASSAGENT_SIMD_MATH(log1pf)
PASSAGENT_SIMD_MATH(expm1f)
PASSAGENT_SIMD_MATH(log2f)
extern "C" __attribute__((simd("notinbranch"), const)) double log10(double) noexcept;
#endif
#endif

// bfloat16 and IEEE float16 as storage: arithmetic happens in float, stores round to nearest even.
struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  bfloat16(const bfloat16&) = default;
  inline bfloat16& operator=(const bfloat16& other) { bits = other.bits; return *this; }
  inline bfloat16& operator+=(float other) { return *this = *this + other; }
  inline bfloat16& operator-=(float other) { return *this = *this - other; }
  inline bfloat16& operator*=(float other) { return *this = *this * other; }
  inline bfloat16& operator/=(float other) { return *this = *this / other; }
  constexpr bfloat16(float value) {
    const uint32_t u = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
  constexpr operator float() const { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
};

struct float16 {
  uint16_t bits;
  float16() = default;
  float16(const float16&) = default;
  inline float16& operator=(const float16& other) { bits = other.bits; return *this; }
  inline float16& operator+=(float other) { return *this = *this + other; }
  inline float16& operator-=(float other) { return *this = *this - other; }
  inline float16& operator*=(float other) { return *this = *this * other; }
  inline float16& operator/=(float other) { return *this = *this / other; }
  constexpr float16(float value) {
    const uint32_t u = __builtin_bit_cast(uint32_t, value);
    const uint32_t a = u & 0x7fffffffu;
    const uint32_t normal = ((a + 0xfffu + ((a >> 13) & 1u)) - 0x38000000u) >> 13;
    const uint32_t tiny = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, a) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? tiny : normal;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? 0x7e00u : r;
    bits = static_cast<uint16_t>(r | ((u >> 16) & 0x8000u));
  }
  constexpr operator float() const {
    const uint32_t h = bits;
    const uint32_t e = (h & 0x7fffu) << 13;
    uint32_t u = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, e) * 0x1p112f);
    u = (h & 0x7c00u) == 0x7c00u ? (e | 0x7f800000u) : u;
    return __builtin_bit_cast(float, u | ((h & 0x8000u) << 16));
  }
};

// What C++ asks of types of numbers: their limits, and their bits, as their assignment (by which loops vectorise) is not
// a trivial one.
template <class T> struct passagent_half_limits : std::numeric_limits<float> {
  static constexpr T infinity() noexcept { return std::numeric_limits<float>::infinity(); }
  static constexpr T quiet_NaN() noexcept { return std::numeric_limits<float>::quiet_NaN(); }
};
namespace std {
template <> struct numeric_limits<bfloat16> : passagent_half_limits<bfloat16> {
  static constexpr int digits = 8;
  static constexpr bfloat16 max() noexcept { return 0x1.fep127f; }
  static constexpr bfloat16 lowest() noexcept { return -0x1.fep127f; }
  static constexpr bfloat16 min() noexcept { return 0x1p-126f; }
  static constexpr bfloat16 denorm_min() noexcept { return 0x1p-133f; }
  static constexpr bfloat16 epsilon() noexcept { return 0x1p-7f; }
};
template <> struct numeric_limits<float16> : passagent_half_limits<float16> {
  static constexpr int digits = 11;
  static constexpr float16 max() noexcept { return 65504.0f; }
  static constexpr float16 lowest() noexcept { return -65504.0f; }
  static constexpr float16 min() noexcept { return 0x1p-14f; }
  static constexpr float16 denorm_min() noexcept { return 0x1p-24f; }
  static constexpr float16 epsilon() noexcept { return 0x1p-10f; }
};
template <class T> inline T bit_cast(const bfloat16& x) { return __builtin_bit_cast(T, x.bits); }
template <class T> inline T bit_cast(const float16& x) { return __builtin_bit_cast(T, x.bits); }
template <class T> requires is_same_v<T, bfloat16> || is_same_v<T, float16> inline T bit_cast(uint16_t bits) {
  T x;
  x.bits = bits;
  return x;
}
}  // namespace std

// The value of `x` after a store to T and a load back: what eager sees between two operators on T.
template <class T> static inline float round_to(float x) { return static_cast<float>(T(x)); }
template <> inline float round_to<float>(float x) { return x; }
template <> inline float round_to<double>(float x) { return x; }
// The 16-bit types stay in 32-bit registers: fewer operations than there and back, and every loop vectorises.
template <> inline float round_to<bfloat16>(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return __builtin_bit_cast(float, (u & 0x7fffffffu) > 0x7f800000u ? (u | 0x400000u) & 0xffff0000u : r);
}
// For float16 a number 2^13 times as large is added and taken away, so that the sum's last place is float16's (2^-24
// for what is subnormal there); what is beyond float16 overflows in the product. In any loop this costs less than a
// call of the hardware's conversion there and back, for which the compiler has no vector form.
template <> inline float round_to<float16>(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  const uint32_t exponent = std::min(std::max(u & 0x7f800000u, 0x38800000u), 0x48000000u);
  const float large = __builtin_bit_cast(float, exponent + 0x06c00000u);
  const float r = ((x + large) - large) * 0x1p112f * 0x1p-112f;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, r) | (u & 0x80000000u));
}

// e to the power of x, to 0.9 units in the last place: expf, as libmvec has it, is off in every second result, which
// shows where 16-bit values are rounded after it. Loops vectorise it. exp_below_f32 is for x up to 0; of exp_added_f32,
// which is for what is added to something larger, results below 2^-125 are 0. Factors scale the result, whose exponents
// add up; at the lower limit one is 0, so that what is far below is 0 without underflow.
static inline float exp_part(float x, float base, float& shifted) {
  shifted = fmaf(x, 1.44269504f, 0x1.8p23f + base);  // the exponent, and `base`, are in its last bits
  const float n = shifted - (0x1.8p23f + base);
  const float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x));
  const float p = fmaf(fmaf(1.37805939e-3f, r, 8.37312452e-3f), r, 4.16695364e-2f);
  return fmaf(fmaf(fmaf(fmaf(p, r, 1.66664720e-1f), r, 4.99999851e-1f), r, 1.0f), r, 1.0f);
}
static inline float exp_f32(float x) {
  float shifted;
  const float p = exp_part(std::min(std::max(x, -176.0f), 89.0f), 254.0f, shifted);
  const uint32_t bits = __builtin_bit_cast(uint32_t, shifted), half = bits >> 1;
  return p * __builtin_bit_cast(float, half << 23) * __builtin_bit_cast(float, (bits - half) << 23);
}
template <int base> static inline float exp_scaled(float x) {
  float shifted;
  const float p = exp_part(x, base, shifted);
  return p * __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23) * (base > 127 ? 0x1p-64f : 2.0f);
}
static inline float exp_below_f32(float x) { return exp_scaled<191>(std::max(x, -132.4f)); }
static inline float exp_added_f32(float x) { return exp_scaled<126>(std::min(std::max(x, -87.3f), 89.0f)); }

// The decimal logarithm, exact for powers of ten: as log10f has it, their last place is off.
static inline float log10_f32(float x) { return static_cast<float>(log10(static_cast<double>(x))); }

// Convert n contiguous elements to float and back; the fast way to read and write half types.
template <class T> static inline void load_f32(float* __restrict__ dst, const T* __restrict__ src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
template <class T> static inline void store_f32(T* __restrict__ dst, const float* __restrict__ src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = T(src[i]);
}
#if defined(__AVX512F__)
template <> inline void load_f32<bfloat16>(float* __restrict__ dst, const bfloat16* __restrict__ src, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i)));
    _mm512_storeu_ps(dst + i, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
  }
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
    _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
  }
  for (; i < n; ++i) dst[i] = src[i];
}
#endif
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
template <> inline void store_f32<bfloat16>(bfloat16* __restrict__ dst, const float* __restrict__ src, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(src + i);
    if (_mm512_fpclass_ps_mask(x, 0x20)) {  // subnormal numbers, which the hardware's conversion takes for 0
      for (int64_t k = i; k < i + 16; ++k) dst[k] = bfloat16(src[k]);
    } else {
      const __m256i halves = (__m256i)_mm512_cvtneps_pbh(x);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), halves);
    }
  }
  for (; i < n; ++i) dst[i] = bfloat16(src[i]);
}
#endif
#if defined(__F16C__)
template <> inline void load_f32<float16>(float* __restrict__ dst, const float16* __restrict__ src, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i))));
#endif
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
  for (; i < n; ++i) dst[i] = src[i];
}
template <> inline void store_f32<float16>(float16* __restrict__ dst, const float* __restrict__ src, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), _mm512_cvtps_ph(_mm512_loadu_ps(src + i), 0));
#endif
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (; i < n; ++i) dst[i] = float16(src[i]);
}
#endif

// `kernel(...), passagent_done()` is what the kernel returns, 0 where that is nothing.
struct passagent_done { constexpr operator int() const { return 0; } };
constexpr int operator,(int status, passagent_done) { return status; }

// `throw std::invalid_argument("rows")` ends the process and says in which line: nothing is unwound, so that what is
// thrown is never made. In C++17 the left side of << comes first.
struct passagent_thrown {
  template <class T> operator T() const { __builtin_unreachable(); }
};
[[noreturn]] inline passagent_thrown passagent_throw(size_t line = __builtin_LINE()) {
  std::__throw_out_of_range_fmt("the kernel throws in line %zu of its source", line);
}
template <class T> constexpr passagent_thrown operator<<(passagent_thrown thrown, T&&) { return thrown; }
#define throw ::passagent_throw() <<

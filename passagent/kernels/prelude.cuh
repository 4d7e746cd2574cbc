// What every cuda_kernel source sees: fixed-width integers, limits, half types, and conversions to and from float.
// Named as in prelude.h. A product is rounded before it is added, as eager does; write fmaf(a, b, c) for one rounding.
#pragma once
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define INT64_MAX 9223372036854775807ll
#define INT64_MIN (-INT64_MAX - 1)
#define M_PI 3.14159265358979323846

// Storage types: arithmetic happens in float, stores round to nearest even.
using float16 = __half;
using bfloat16 = __nv_bfloat16;

// One element to float and back.
template <class T> __device__ __forceinline__ float load_f32(const T* p) { return static_cast<float>(*p); }
template <class T> __device__ __forceinline__ void store_f32(T* p, float value) { *p = static_cast<T>(value); }

// The value of `x` after a store to T and a load back: what eager sees between two operators on T.
template <class T> __device__ __forceinline__ float round_to(float x) { return static_cast<float>(static_cast<T>(x)); }

// N neighbours as one transaction: N * sizeof(T) must be 1, 2, 4, 8 or 16, and p aligned to it.
template <class T, int N> struct alignas(sizeof(T) * N) vec {
  T v[N];
  __device__ __forceinline__ T& operator[](int i) { return v[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }
};
template <int N, class T> __device__ __forceinline__ vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const vec<T, N>*>(p);
}
template <int N, class T> __device__ __forceinline__ void store_vec(T* p, const vec<T, N>& value) {
  *reinterpret_cast<vec<T, N>*>(p) = value;
}

// Sum and maximum over the 32 threads of a warp; every thread gets the result.
__device__ __forceinline__ float warp_sum(float x) {
  for (int k = 16; k > 0; k >>= 1) x += __shfl_xor_sync(0xffffffffu, x, k);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  for (int k = 16; k > 0; k >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
  return x;
}

// The part of the C++ library that device code uses, as NVRTC brings none: mathematics, limits, types, min and max.
#pragma once
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4)
#define PASSAGENT_BITS(T, made, bits) __builtin_bit_cast(T, bits)  // in constants, too
#else
#define PASSAGENT_BITS(T, made, bits) made(bits)
#endif
namespace std {
using ::int8_t, ::int16_t, ::int32_t, ::int64_t, ::uint8_t, ::uint16_t, ::uint32_t, ::uint64_t;
using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
using nullptr_t = decltype(nullptr);

using ::abs, ::acos, ::acosh, ::asin, ::asinh, ::atan, ::atan2, ::atanh, ::cbrt, ::ceil, ::copysign, ::cos, ::cosh, ::erf,
    ::erfc, ::exp, ::exp2, ::expm1, ::fabs, ::fdim, ::floor, ::fma, ::fmax, ::fmin, ::fmod, ::frexp, ::hypot, ::isfinite,
    ::isinf, ::isnan, ::ldexp, ::lgamma, ::llrint, ::llround, ::log, ::log10, ::log1p, ::log2, ::logb, ::lrint, ::lround,
    ::modf, ::nearbyint, ::nextafter, ::pow, ::remainder, ::rint, ::round, ::scalbn, ::signbit, ::sin, ::sinh, ::sqrt,
    ::tan, ::tanh, ::tgamma, ::trunc;

template <class T> constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> constexpr const T& clamp(const T& x, const T& low, const T& high) {
  return x < low ? low : high < x ? high : x;
}
template <class T> constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}

template <class T, size_t n> struct array {  // nothing but a struct with an array: an aggregate
  T elements[n];
  using value_type = T;
  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  constexpr T* data() { return elements; }
  constexpr const T* data() const { return elements; }
  constexpr T* begin() { return elements; }
  constexpr const T* begin() const { return elements; }
  constexpr T* end() { return elements + n; }
  constexpr const T* end() const { return elements + n; }
  constexpr size_t size() const { return n; }
  constexpr void fill(const T& value) {
    for (T& element : elements) element = value;
  }
};

template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  constexpr operator T() const { return v; }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <class T> struct passagent_box {};
template <class A, class B> constexpr bool passagent_same(passagent_box<A>, passagent_box<B>) { return false; }
template <class A> constexpr bool passagent_same(passagent_box<A>, passagent_box<A>) { return true; }
template <class A, class B>
struct is_same : bool_constant<passagent_same(passagent_box<A>(), passagent_box<B>())> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool, class A, class> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool which, class A, class B> using conditional_t = typename conditional<which, A, B>::type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool holds, class T = void> using enable_if_t = typename enable_if<holds, T>::type;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_cv { using type = T; };
template <class T> struct remove_cv<const T> { using type = T; };
template <class T> struct remove_cv<volatile T> { using type = T; };
template <class T> struct remove_cv<const volatile T> { using type = T; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class T, class... Others> inline constexpr bool passagent_is_one_of = (is_same_v<remove_cv_t<T>, Others> || ...);
template <class T> struct is_floating_point : bool_constant<passagent_is_one_of<T, float, double>> {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_integral : bool_constant<passagent_is_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int,
                                                       unsigned, long, unsigned long, long long, unsigned long long>> {};
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;

template <class T> struct numeric_limits {
  static_assert(is_integral_v<T>, "std::numeric_limits of this type is not known");
  static constexpr bool is_integer = true, is_signed = T(-1) < T(0), is_specialized = true;
  static constexpr int digits = is_same_v<T, bool> ? 1 : static_cast<int>(sizeof(T)) * 8 - is_signed;
  static constexpr T max() { return static_cast<T>(~0ull >> (64 - digits)); }
  static constexpr T min() { return is_signed ? static_cast<T>(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};
struct passagent_float_limits {
  enum : bool { is_integer = false, is_signed = true, is_specialized = true, has_infinity = true };
};
template <> struct numeric_limits<float> : passagent_float_limits {
  enum : int { digits = 24 };
  static constexpr float max() { return 3.402823466e+38f; }
  static constexpr float min() { return 1.175494351e-38f; }
  static constexpr float lowest() { return -max(); }
  static constexpr float epsilon() { return 1.192092896e-07f; }
  static constexpr float infinity() { return PASSAGENT_BITS(float, __int_as_float, 0x7f800000); }
  static constexpr float quiet_NaN() { return PASSAGENT_BITS(float, __int_as_float, 0x7fc00000); }
};
template <> struct numeric_limits<double> : passagent_float_limits {
  enum : int { digits = 53 };
  static constexpr double max() { return 1.7976931348623158e+308; }
  static constexpr double min() { return 2.2250738585072014e-308; }
  static constexpr double lowest() { return -max(); }
  static constexpr double epsilon() { return 2.2204460492503131e-16; }
  static constexpr double infinity() { return PASSAGENT_BITS(double, __longlong_as_double, 0x7ff0000000000000ll); }
  static constexpr double quiet_NaN() { return PASSAGENT_BITS(double, __longlong_as_double, 0x7ff8000000000000ll); }
};
template <> struct numeric_limits<__half> : passagent_float_limits {
  enum : int { digits = 11 };
  static __half max() { return __ushort_as_half(0x7bff); }
  static __half min() { return __ushort_as_half(0x0400); }
  static __half lowest() { return __ushort_as_half(0xfbff); }
  static __half epsilon() { return __ushort_as_half(0x1400); }
  static __half infinity() { return __ushort_as_half(0x7c00); }
  static __half quiet_NaN() { return __ushort_as_half(0x7e00); }
};
template <> struct numeric_limits<__nv_bfloat16> : passagent_float_limits {
  enum : int { digits = 8 };
  static __nv_bfloat16 max() { return __ushort_as_bfloat16(0x7f7f); }
  static __nv_bfloat16 min() { return __ushort_as_bfloat16(0x0080); }
  static __nv_bfloat16 lowest() { return __ushort_as_bfloat16(0xff7f); }
  static __nv_bfloat16 epsilon() { return __ushort_as_bfloat16(0x3c00); }
  static __nv_bfloat16 infinity() { return __ushort_as_bfloat16(0x7f80); }
  static __nv_bfloat16 quiet_NaN() { return __ushort_as_bfloat16(0x7fc0); }
};
}  // namespace std
#undef PASSAGENT_BITS

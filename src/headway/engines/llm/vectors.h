// Eight floats at a time, by the vector types of gcc and clang.
#pragma once
#include <cstdint>

typedef float v8 __attribute__((vector_size(32), aligned(4)));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4)));
typedef uint32_t u8 __attribute__((vector_size(32), aligned(4)));

#ifdef __clang__
#define LANES(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define LANES(x, y, ...) __builtin_shuffle(x, y, i8{__VA_ARGS__})
#endif

static inline v8 load(const float* p) { return *(const v8*)p; }
static inline void store(float* p, v8 x) { *(v8*)p = x; }
static inline v8 splat(float x) { return v8{x, x, x, x, x, x, x, x}; }
static inline float total(v8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

// exp by range reduction and the degree-5 minimax polynomial of Cephes expf, for -88 <= x <= 88.3; 0 below -87.68.
static inline v8 power(v8 x) {
  const v8 rounds = splat(12582912.f + 127.f);  // 1.5 * 2^23: the sum is an integer, and its last bits an exponent
  const v8 scaled = x * splat(1.44269504088896341f) + rounds, whole = scaled - rounds;
  v8 r = x - whole * splat(0.693359375f);
  r = r - whole * splat(-2.12194440e-4f);
  v8 y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * r * r + r + splat(1.f);
  return y * (v8)((u8)scaled << 23);
}
static inline v8 larger(v8 a, v8 b) { return a > b ? a : b; }
static inline v8 exp8(v8 x) { return power(larger(x < splat(88.3f) ? x : splat(88.3f), splat(-88.f))); }

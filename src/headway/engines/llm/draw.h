// One token of a row of logits: temperature, min_p, top_k and top_p, then the cumulative distribution inverted.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "vectors.h"

// The least of p[0 : n] (in [0, 1]) that a row keeps: the top_k largest, and of their mass the largest down to top_p.
// Bits of positive floats order as the floats do: a histogram over the upper 16 bits finds the bucket of the edge, and
// only that bucket is sorted.
struct Histogram {
  static constexpr int buckets = 0x3F81;
  std::vector<int32_t> count = std::vector<int32_t>(buckets);
  std::vector<double> mass = std::vector<double>(buckets);
  std::vector<float> inside;

  static int bucket(float p) {
    uint32_t bits;
    std::memcpy(&bits, &p, 4);
    return bits >> 16;
  }
  void fill(const float* p, int64_t n) {
    std::fill(count.begin(), count.end(), 0);
    std::fill(mass.begin(), mass.end(), 0.0);
    for (int64_t i = 0; i < n; i++)
      if (p[i] > 0.f) {
        const int b = bucket(p[i]);
        count[b]++;
        mass[b] += p[i];
      }
  }
  void open(const float* p, int64_t n, int b) {
    inside.clear();
    for (int64_t i = 0; i < n; i++)
      if (p[i] > 0.f && bucket(p[i]) == b) inside.push_back(p[i]);
    std::sort(inside.begin(), inside.end(), std::greater<float>());
  }
  float edge(const float* p, int64_t n, int64_t top_k, double top_p) {
    fill(p, n);
    double whole = 0.0;
    int64_t kept = 0;
    float least = 0.f;
    for (int b = buckets - 1; b >= 0; b--) {
      if (top_k > 0 && kept + count[b] >= top_k) {
        open(p, n, b);
        for (int64_t i = 0; i < top_k - kept; i++) whole += inside[i];
        least = inside[top_k - kept - 1];
        break;
      }
      kept += count[b];
      whole += mass[b];
    }
    if (top_p >= 1.0) return least;
    double before = 0.0;
    for (int b = buckets - 1; b >= 0; b--) {
      if (before + mass[b] < top_p * whole) {
        before += mass[b];
        continue;
      }
      open(p, n, b);
      float last = 0.f;
      for (float value : inside) {
        if (last > 0.f && before >= top_p * whole) break;
        before += value;
        last = value;
      }
      return std::max(least, last);
    }
    return least;
  }
};

static int32_t draw(const float* logits, int64_t n, float temperature, float min_p, int64_t top_k, double top_p,
                    double unit, float* p, Histogram& histogram) {
  float peak = logits[0];
  for (int64_t i = 1; i < n; i++) peak = std::max(peak, logits[i]);
  for (int64_t i = 0; i < n; i += 8) {
    v8 x = splat(-std::numeric_limits<float>::infinity());
    if (i + 8 <= n) x = load(logits + i);
    else
      for (int64_t j = i; j < n; j++) x[j - i] = logits[j];
    const v8 e = exp8((x - splat(peak)) / splat(temperature));
    store(p + i, e < splat(min_p) ? splat(0.f) : e);
  }
  if (top_k > 0 || top_p < 1.0) {
    const float least = histogram.edge(p, n, top_k, top_p);
    for (int64_t i = 0; i < n; i++) p[i] = p[i] < least ? 0.f : p[i];
  }
  double whole = 0.0, reached = 0.0;
  for (int64_t i = 0; i < n; i++) whole += p[i];
  for (int64_t i = 0; i < n; i++) {
    reached += p[i];
    if (reached > unit * whole) return (int32_t)i;
  }
  return 0;
}

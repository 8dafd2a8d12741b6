// CPU kernels of the LLM engine, in plain C ABI so that they build in seconds and need no torch headers.
//
// Batch invariance is by construction (SPEC B7): every output element is computed by one sequence of operations that
// depends on its own row only. Matrix products accumulate over k in ascending order in one accumulator; attention walks
// the KV blocks of its sequence in ascending order; sums over a row use eight fixed lanes. Tiling and threads choose
// which elements are computed together, never the order inside one. No -ffast-math: it would let the compiler reorder.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

typedef float v8 __attribute__((vector_size(32), aligned(4)));
typedef int32_t i8 __attribute__((vector_size(32), aligned(4)));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2)));
typedef uint32_t u8 __attribute__((vector_size(32), aligned(4)));

static inline v8 load(const float* p) { return *(const v8*)p; }
static inline void store(float* p, v8 x) { *(v8*)p = x; }
static inline v8 splat(float x) { return v8{x, x, x, x, x, x, x, x}; }
static inline float total(v8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }
static inline v8 load_weight(const float* p) { return load(p); }
static inline v8 load_weight(const uint16_t* p) { return (v8)(__builtin_convertvector(*(const h8*)p, u8) << 16); }

// exp by range reduction and the degree-5 minimax polynomial of Cephes expf; arguments below -87.3 give 0.
static inline v8 exp8(v8 x) {
  i8 alive = x > splat(-87.3f);
  v8 clipped = x > splat(88.3f) ? splat(88.3f) : (alive ? x : splat(0.f));
  v8 scaled = clipped * splat(1.44269504088896341f) + splat(12582912.f);  // 1.5 * 2^23: rounds to an integer
  v8 whole = scaled - splat(12582912.f);
  v8 r = clipped - whole * splat(0.693359375f);
  r = r - whole * splat(-2.12194440e-4f);
  v8 y = splat(1.9875691500e-4f);
  y = y * r + splat(1.3981999507e-3f);
  y = y * r + splat(8.3334519073e-3f);
  y = y * r + splat(4.1665795894e-2f);
  y = y * r + splat(1.6666665459e-1f);
  y = y * r + splat(5.0000001201e-1f);
  y = y * r * r + r + splat(1.f);
  i8 exponent = (__builtin_convertvector(whole, i8) + 127) << 23;
  return alive ? y * (v8)exponent : splat(0.f);
}

// y[M, N] = x[M, K] @ w[N, K]^T (+ bias). Weights lie in panels of 16 outputs: [ceil(N / 16), K, 16].
template <typename W, int MR, int NP>
static void tile(const float* x, int64_t ldx, const W* w, int64_t panel, int64_t k, float* y, int64_t ldy, bool first) {
  v8 acc[MR][NP * 2];
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NP * 2; n++) acc[m][n] = first ? splat(0.f) : load(y + m * ldy + n * 8);
  for (int64_t i = 0; i < k; i++) {
    v8 b[NP * 2];
    for (int n = 0; n < NP; n++) {
      b[2 * n] = load_weight(w + n * panel + i * 16);
      b[2 * n + 1] = load_weight(w + n * panel + i * 16 + 8);
    }
    for (int m = 0; m < MR; m++) {
      v8 a = splat(x[m * ldx + i]);
      for (int n = 0; n < NP * 2; n++) acc[m][n] = a * b[n] + acc[m][n];
    }
  }
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NP * 2; n++) store(y + m * ldy + n * 8, acc[m][n]);
}

template <typename W, int NP>
static void rows(int64_t m, const float* x, int64_t ldx, const W* w, int64_t panel, int64_t k, float* y, int64_t ldy,
                 bool first) {
  constexpr int most = NP == 1 ? 6 : NP == 2 ? 3 : 1;
  int64_t at = 0;
  for (; at + most <= m; at += most) tile<W, most, NP>(x + at * ldx, ldx, w, panel, k, y + at * ldy, ldy, first);
  x += at * ldx;
  y += at * ldy;
  switch (m - at) {
    case 1: tile<W, 1, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    case 2: tile<W, 2, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    case 3: tile<W, 3, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    case 4: tile<W, 4, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    case 5: tile<W, 5, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    default: break;
  }
}

template <typename W>
static void linear(const float* x, const W* w, float* y, int64_t M, int64_t K, int64_t panels, int threads) {
  constexpr int64_t kc = 512;
  const int64_t ld = panels * 16, panel = K * 16;
  // Few rows: wide tiles hide the latency of the single accumulation chain. Many rows: tall tiles reuse the weights,
  // and widening a panel once to float is cheaper than widening it in every tile (exact, so the result is the same).
  const int64_t group = M <= 1 ? 4 : M <= 3 ? 2 : 1;
  const bool widen = sizeof(W) == 2 && M > 6;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t g = 0; g < (panels + group - 1) / group; g++) {
    const int64_t first = g * group, count = std::min(group, panels - first);
    for (int64_t k = 0; k < K; k += kc) {
      const int64_t depth = std::min(kc, K - k);
      const W* from = w + first * panel + k * 16;
      float* to = y + first * 16;
      if (widen) {
        alignas(32) float wide[kc * 16];
        for (int64_t i = 0; i < depth * 16; i += 8) store(wide + i, load_weight(from + i));
        rows<float, 1>(M, x + k, K, wide, 0, depth, to, ld, k == 0);
      } else if (count == 4) {
        rows<W, 4>(M, x + k, K, from, panel, depth, to, ld, k == 0);
      } else if (count == 2) {
        rows<W, 2>(M, x + k, K, from, panel, depth, to, ld, k == 0);
      } else {
        for (int64_t p = 0; p < count; p++)
          rows<W, 1>(M, x + k, K, from + p * panel, panel, depth, to + p * 16, ld, k == 0);
      }
    }
  }
}

// One KV head of up to `count` consecutive rows of one sequence, whose contexts end at first_context + row.
struct Paged {
  const float *q, *k, *v;
  float* out;
  const int32_t* table;
  int64_t q_stride, out_stride, kv_heads, group, block;
  float scale;
};

template <int HD>
static void attend(const Paged& a, int64_t head, int64_t first_context, int count, int64_t head_dim) {
  const int D = HD ? HD : (int)head_dim;
  constexpr int most = 32, width = HD ? HD : 256;
  alignas(32) float q[most][width], acc[most][width], score[64];
  float peak[most], sum[most];
  const int G = (int)a.group, queries = count * G;
  for (int i = 0; i < queries; i++) {
    const float* from = a.q + (i / G) * a.q_stride + (head * G + i % G) * D;
    for (int d = 0; d < D; d += 8) {
      store(q[i] + d, load(from + d) * splat(a.scale));
      store(acc[i] + d, splat(0.f));
    }
    peak[i] = -std::numeric_limits<float>::infinity();
    sum[i] = 0.f;
  }
  const int64_t last = first_context + count - 1, stride = a.kv_heads * D;
  for (int64_t start = 0; start < last; start += a.block) {
    const int64_t base = ((int64_t)a.table[start / a.block] * a.block * a.kv_heads + head) * D;
    const float *k = a.k + base, *v = a.v + base;
    for (int i = 0; i < queries; i++) {
      const int64_t context = first_context + i / G;
      if (context <= start) continue;
      const int keys = (int)std::min<int64_t>(a.block, context - start);
      float top = peak[i];
      for (int j = 0; j < keys; j++) {
        v8 dot = splat(0.f);
        for (int d = 0; d < D; d += 8) dot = load(q[i] + d) * load(k + j * stride + d) + dot;
        score[j] = total(dot);
        top = std::max(top, score[j]);
      }
      for (int j = keys; j < a.block; j++) score[j] = -std::numeric_limits<float>::infinity();
      if (top != peak[i]) {
        const float shrink = sum[i] == 0.f ? 0.f : exp8(splat(peak[i] - top))[0];
        for (int d = 0; d < D; d += 8) store(acc[i] + d, load(acc[i] + d) * splat(shrink));
        sum[i] *= shrink;
        peak[i] = top;
      }
      v8 weights = splat(0.f);
      for (int j = 0; j < a.block; j += 8) {
        const v8 e = exp8(load(score + j) - splat(top));
        store(score + j, e);
        weights = weights + e;
      }
      sum[i] += total(weights);
      for (int d = 0; d < D; d += 8) {
        v8 s = load(acc[i] + d);
        for (int j = 0; j < keys; j++) s = splat(score[j]) * load(v + j * stride + d) + s;
        store(acc[i] + d, s);
      }
    }
  }
  for (int i = 0; i < queries; i++) {
    float* to = a.out + (i / G) * a.out_stride + (head * G + i % G) * D;
    for (int d = 0; d < D; d += 8) store(to + d, load(acc[i] + d) / splat(sum[i]));
  }
}

static void normalise(const float* x, const float* weight, float* y, int64_t n, float eps) {
  v8 squares = splat(0.f);
  for (int64_t i = 0; i < n; i += 8) squares = load(x + i) * load(x + i) + squares;
  const v8 scale = splat(1.f / std::sqrt(total(squares) / (float)n + eps));
  for (int64_t i = 0; i < n; i += 8) store(y + i, load(x + i) * scale * load(weight + i));
}

extern "C" {

void hw_linear_f32(const float* x, const float* w, float* y, int64_t M, int64_t K, int64_t panels, int threads) {
  linear<float>(x, w, y, M, K, panels, threads);
}

void hw_linear_bf16(const float* x, const uint16_t* w, float* y, int64_t M, int64_t K, int64_t panels, int threads) {
  linear<uint16_t>(x, w, y, M, K, panels, threads);
}

// residual[M, n] += delta (where delta is not null); y = rms_norm(residual) * weight. n is a multiple of 8.
void hw_add_rms_norm(float* residual, const float* delta, int64_t delta_stride, const float* weight, float* y,
                     int64_t M, int64_t n, float eps, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (M >= 8)
  for (int64_t m = 0; m < M; m++) {
    float* r = residual + m * n;
    if (delta)
      for (int64_t i = 0; i < n; i += 8) store(r + i, load(r + i) + load(delta + m * delta_stride + i));
    normalise(r, weight, y + m * n, n, eps);
  }
}

// In place on qkv[M, stride]: optional per-head norms, rotary embedding by halves; then K and V go to their slots.
void hw_rope_store(float* qkv, int64_t stride, const float* cosine, const float* sine, const int32_t* positions,
                   const int64_t* slots, float* k_cache, float* v_cache, const float* q_norm, const float* k_norm,
                   float eps, int64_t M, int64_t heads, int64_t kv_heads, int64_t D, int threads) {
  const int64_t half = D / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (M >= 8)
  for (int64_t m = 0; m < M; m++) {
    float* row = qkv + m * stride;
    const float *c = cosine + positions[m] * half, *s = sine + positions[m] * half;
    for (int64_t h = 0; h < heads + kv_heads; h++) {
      float* x = row + h * D;
      const float* norm = h < heads ? q_norm : k_norm;
      if (norm) normalise(x, norm, x, D, eps);
      for (int64_t d = 0; d < half; d += 8) {
        const v8 low = load(x + d), high = load(x + half + d), cd = load(c + d), sd = load(s + d);
        store(x + d, low * cd - high * sd);
        store(x + half + d, high * cd + low * sd);
      }
    }
    const int64_t to = slots[m] * kv_heads * D, bytes = kv_heads * D * sizeof(float);
    std::memcpy(k_cache + to, row + heads * D, bytes);
    std::memcpy(v_cache + to, row + (heads + kv_heads) * D, bytes);
  }
}

// Row m attends to the first contexts[m] positions of table owners[m]; consecutive rows of one owner are consecutive
// positions. A row of context 0 is padding and gives zeros. block is a multiple of 8, at most 64.
void hw_attention(const float* q, int64_t q_stride, const float* k, const float* v, const int32_t* tables,
                  int64_t table_stride, const int32_t* owners, const int32_t* contexts, const int32_t* starts,
                  int64_t tiles, float* out, int64_t heads, int64_t kv_heads, int64_t D, int64_t block, float scale,
                  int threads) {
  const int64_t G = heads / kv_heads;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(threads)
  for (int64_t t = 0; t < tiles; t++)
    for (int64_t head = 0; head < kv_heads; head++) {
      const int64_t m = starts[t];
      const int count = starts[t + 1] - starts[t];
      Paged a{q + m * q_stride, k, v, out + m * heads * D, tables + (int64_t)owners[m] * table_stride,
              q_stride, heads * D, kv_heads, G, block, scale};
      if (contexts[m] == 0)
        for (int64_t i = 0; i < count; i++) std::memset(a.out + i * a.out_stride + head * G * D, 0, G * D * sizeof(float));
      else if (D == 64)
        attend<64>(a, head, contexts[m], count, D);
      else if (D == 128)
        attend<128>(a, head, contexts[m], count, D);
      else
        attend<0>(a, head, contexts[m], count, D);
    }
}

// y[M, n] = silu(x[:, :n]) * x[:, n:2n]. n is a multiple of 8.
void hw_silu_mul(const float* x, int64_t stride, float* y, int64_t M, int64_t n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (M >= 4)
  for (int64_t m = 0; m < M; m++)
    for (int64_t i = 0; i < n; i += 8) {
      const v8 gate = load(x + m * stride + i), up = load(x + m * stride + n + i);
      store(y + m * n + i, gate / (splat(1.f) + exp8(-gate)) * up);
    }
}
}

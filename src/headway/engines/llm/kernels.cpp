// CPU kernels of the LLM engine, in plain C ABI so that they build in seconds and need no torch headers.
//
// Batch invariance is by construction (SPEC B7): every output element is computed by one sequence of operations that
// depends on its own row only. Matrix products accumulate over k in ascending order in one accumulator; attention walks
// the KV blocks of its sequence in ascending order; sums over a row use eight fixed lanes. Tiling and threads choose
// which elements are computed together, never the order inside one. No -ffast-math: it would let the compiler reorder.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "draw.h"
#include "team.h"
#include "vectors.h"

// The sixteen weights of one k in a panel. bf16 weights n and n + 8 share a word, so that one load and two operations
// widen all sixteen; converting them in order takes twice as many and costs a batch of 8 half its speed.
static inline void load_weights(const float* p, v8* b) {
  b[0] = load(p);
  b[1] = load(p + 8);
}
static inline void load_weights(const uint16_t* p, v8* b) {
  const u8 pairs = *(const u8*)p;
  b[0] = (v8)(pairs << 16);
  b[1] = (v8)(pairs & 0xFFFF0000u);
}

// y[M, N] = x[M, K] @ w[N, K]^T. Weights lie in panels of 16 outputs: [ceil(N / 16), K, 16]. A decode step reads every
// weight once from memory; fetching 2 KiB ahead takes it from 23 to 18 ms for SmolLM2-135M at 19 GB/s.
template <typename W, int MR, int NP>
static void tile(const float* x, int64_t ldx, const W* w, int64_t panel, int64_t k, float* y, int64_t ldy, bool first) {
  v8 acc[MR][NP * 2];
  for (int m = 0; m < MR; m++)
    for (int n = 0; n < NP * 2; n++) acc[m][n] = first ? splat(0.f) : load(y + m * ldy + n * 8);
  for (int64_t i = 0; i < k; i++) {
    v8 b[NP * 2];
    for (int n = 0; n < NP; n++) {
      if (sizeof(W) == 2) __builtin_prefetch(w + n * panel + i * 16 + 1024, 0, 0);
      load_weights(w + n * panel + i * 16, b + 2 * n);
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
  constexpr int64_t most = NP == 1 ? 6 : NP == 2 ? 2 : 1;
  // Tiles of nearly equal height: 8 rows as 4 + 4 keep more accumulators busy than 6 + 2.
  for (int64_t tiles = (m + most - 1) / most, take; m > 0; m -= take, tiles--, x += take * ldx, y += take * ldy) {
    take = (m + tiles - 1) / tiles;
    switch (take) {
      case 1: tile<W, 1, NP>(x, ldx, w, panel, k, y, ldy, first); break;
      case 2: tile<W, 2, NP>(x, ldx, w, panel, k, y, ldy, first); break;
      case 3: tile<W, 3, NP>(x, ldx, w, panel, k, y, ldy, first); break;
      case 4: tile<W, 4, NP>(x, ldx, w, panel, k, y, ldy, first); break;
      case 5: tile<W, 5, NP>(x, ldx, w, panel, k, y, ldy, first); break;
      default: tile<W, 6, NP>(x, ldx, w, panel, k, y, ldy, first); break;
    }
  }
}

// What one of several threads does of n equal pieces.
struct Part {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
  Part(int64_t n, int64_t me = omp_get_thread_num(), int64_t of = omp_get_num_threads())
      : begin(n * me / of), end(n * (me + 1) / of) {}
};

// y = x @ w^T for M rows and a part of the panels.
template <typename W>
__attribute__((noinline)) static void linear(const float* x, int64_t ldx, const W* w, float* y, int64_t ldy, int64_t M, int64_t K, Part panels) {
  constexpr int64_t kc = 288;  // of K: the panel's part and the rows of a tile stay in the first cache
  // While all panels pass, the rows stay in the second cache: 65536 floats are half of it.
  const int64_t kb = std::max(kc, 65536 / std::max<int64_t>(M, 1) / kc * kc);
  const int64_t panel = K * 16;
  // Few rows: wide tiles hide the latency of the single accumulation chain. Many rows: tall tiles reuse the weights.
  const int64_t group = M <= 1 ? 4 : M <= 2 ? 2 : 1;
  for (int64_t back = 0; back < K; back += kb)
    for (int64_t p = panels.begin, count; p < panels.end; p += count) {
      const int64_t left = std::min(group, panels.end - p);
      count = left == 3 ? 2 : left;
      for (int64_t k = back; k < std::min(K, back + kb); k += kc) {
        const int64_t depth = std::min(kc, K - k);
        const W* from = w + p * panel + k * 16;
        if (count == 4) rows<W, 4>(M, x + k, ldx, from, panel, depth, y + p * 16, ldy, k == 0);
        else if (count == 2) rows<W, 2>(M, x + k, ldx, from, panel, depth, y + p * 16, ldy, k == 0);
        else rows<W, 1>(M, x + k, ldx, from, panel, depth, y + p * 16, ldy, k == 0);
      }
    }
}

// Sums of the lanes of eight vectors, as one vector; the same tree for every lane.
static inline v8 totals(const v8* x) {
  v8 pair[4];
  for (int i = 0; i < 4; i++)
    pair[i] = LANES(x[2 * i], x[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
              LANES(x[2 * i], x[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  const v8 one = LANES(pair[0], pair[1], 0, 1, 8, 9, 4, 5, 12, 13) + LANES(pair[0], pair[1], 2, 3, 10, 11, 6, 7, 14, 15);
  const v8 two = LANES(pair[2], pair[3], 0, 1, 8, 9, 4, 5, 12, 13) + LANES(pair[2], pair[3], 2, 3, 10, 11, 6, 7, 14, 15);
  return LANES(one, two, 0, 1, 2, 3, 8, 9, 10, 11) + LANES(one, two, 4, 5, 6, 7, 12, 13, 14, 15);
}

// A vector that is used several times stays in its register: gcc would read it from memory again for every product,
// and two loads a cycle are what attention then waits for.
static inline v8 held(v8 x) {
#ifdef __x86_64__
  asm("" : "+x"(x));
#endif
  return x;
}

// Query heads that share a KV head are taken three at a time: twelve sums, three queries and one key fill the sixteen
// registers of AVX2, and every key and value is loaded once for all three. Many rows of a sequence go as a tile of six
// queries by sixteen keys, over keys laid across.
constexpr int together = 3, side = 6, most_queries = 96, most_keys = 64, few_queries = 12;

// score[i][j] = q[i] . k[j] for a whole block, which lies whole in memory however many of its keys are seen.
template <int Q>
static inline void dots(const float* q, int64_t width, const float* k, int64_t stride, int D, int block, float* score) {
  for (int j = 0; j < block; j += 8) {
    v8 dot[Q][8];
    for (int first = 0; first < 8; first += 4) {
      v8 s[Q][4];
      for (int i = 0; i < Q; i++)
        for (int e = 0; e < 4; e++) s[i][e] = splat(0.f);
      for (int d = 0; d < D; d += 8) {
        v8 query[Q];
        for (int i = 0; i < Q; i++) query[i] = load(q + i * width + d);
        for (int e = 0; e < 4; e++) {
          const v8 key = held(load(k + (j + first + e) * stride + d));
          for (int i = 0; i < Q; i++) s[i][e] = query[i] * key + s[i][e];
        }
      }
      for (int i = 0; i < Q; i++)
        for (int e = 0; e < 4; e++) dot[i][first + e] = s[i][e];
    }
    for (int i = 0; i < Q; i++) store(score + i * most_keys + j, totals(dot[i]));
  }
}

constexpr int lanes[8] = {0, 2, 1, 3, 4, 6, 5, 7};  // as `totals` adds them; lane i is added as the lanes[i]th

// Sixteen keys across: of every lane of `dots`, [8, D / 8, 16]. Six queries by sixteen keys take the same sums
// lane after lane, and add them up in the same tree.
static inline void dots_across(const float* q, int64_t width, const float* across, int D, float* score) {
  v8 left[3][side][2];
#pragma GCC unroll 1
  for (int n = 0; n < 8; n++) {
    v8 s[side][2];
    for (int i = 0; i < side; i++) s[i][0] = s[i][1] = splat(0.f);
#pragma GCC unroll 1
    for (int d = lanes[n]; d < D; d += 8, across += 16) {
      const v8 low = held(load(across)), high = held(load(across + 8));
      for (int i = 0; i < side; i++) {
        const v8 query = held(splat(q[i * width + d]));
        s[i][0] = query * low + s[i][0];
        s[i][1] = query * high + s[i][1];
      }
    }
    int level = 0;
    for (; n >> level & 1; level++)
      for (int i = 0; i < side; i++)
        for (int h = 0; h < 2; h++) s[i][h] = left[level][i][h] + s[i][h];
    for (int i = 0; i < side; i++)
      for (int h = 0; h < 2; h++)
        if (n < 7) left[level][i][h] = s[i][h];
        else store(score + i * most_keys + 8 * h, s[i][h]);
  }
}

// Eight keys, [8, D], into eight columns of sixteen.
static inline void lay_across(const float* k, int64_t stride, int D, float* across) {
  for (int d = 0; d < D; d += 8) {
    v8 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = load(k + i * stride + d);
    for (int i = 0; i < 8; i += 2) {
      b[i] = LANES(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      b[i + 1] = LANES(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
      for (int e = 0; e < 2; e++) {
        a[i + 2 * e] = LANES(b[i + e], b[i + e + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        a[i + 2 * e + 1] = LANES(b[i + e], b[i + e + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      }
    for (int i = 0; i < 4; i++) {
      store(across + (lanes[i] * D + d) * 2, LANES(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
      store(across + (lanes[i + 4] * D + d) * 2, LANES(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
  }
}

// acc[i][0 : 8 * C] += sum over keys, ascending, of weight[i][j] * v[j].
template <int Q, int C>
static inline void gather(float* acc, int64_t width, const float* weight, const float* v, int64_t stride, int keys) {
  v8 s[Q][C];
  for (int i = 0; i < Q; i++)
    for (int c = 0; c < C; c++) s[i][c] = load(acc + i * width + 8 * c);
  for (int j = 0; j < keys; j++) {
    v8 few[std::min(Q, C)];
    if (C < Q) {
      for (int c = 0; c < C; c++) few[c] = held(load(v + j * stride + 8 * c));
      for (int i = 0; i < Q; i++) {
        const v8 w = splat(weight[i * most_keys + j]);
        for (int c = 0; c < C; c++) s[i][c] = w * few[c] + s[i][c];
      }
    } else {
      for (int i = 0; i < Q; i++) few[i] = splat(weight[i * most_keys + j]);
      for (int c = 0; c < C; c++) {
        const v8 value = held(load(v + j * stride + 8 * c));
        for (int i = 0; i < Q; i++) s[i][c] = few[i] * value + s[i][c];
      }
    }
  }
  for (int i = 0; i < Q; i++)
    for (int c = 0; c < C; c++) store(acc + i * width + 8 * c, s[i][c]);
}

static inline float largest(v8 x) {
  x = larger(x, LANES(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
  x = larger(x, LANES(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
  return larger(x, LANES(x, x, 1, 0, 3, 2, 5, 4, 7, 6))[0];
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
struct Queries {
  static constexpr int width = HD ? HD : 256;
  alignas(32) float q[most_queries][width], acc[most_queries][width];
  float peak[most_queries], sum[most_queries];

  // Softmax as it runs: what query i gathered shrinks to its new peak, then its scores of `keys` keys become weights.
  // Apart, so that several queries overlap: each alone is a chain of waits.
  inline void rise(int i, float* score, int keys, int D) {
    const int end = (keys + 7) / 8 * 8;
    for (int j = keys; j < end; j++) score[j] = -std::numeric_limits<float>::infinity();
    v8 tops = load(score);
    for (int j = 8; j < end; j += 8) tops = larger(load(score + j), tops);
    const float top = std::max(peak[i], largest(tops));
    if (top == peak[i]) return;
    const float shrink = sum[i] == 0.f ? 0.f : exp8(splat(peak[i] - top))[0];
    for (int d = 0; d < D; d += 8) store(acc[i] + d, load(acc[i] + d) * splat(shrink));
    sum[i] *= shrink;
    peak[i] = top;
  }
  inline void weigh(int i, float* score, int keys) {
    v8 weights = splat(0.f);
    for (int j = 0; j < keys; j += 8) {
      const v8 e = power(larger(load(score + j) - splat(peak[i]), splat(-88.f)));
      store(score + j, e);
      weights = weights + e;
    }
    sum[i] += total(weights);
  }
};

// Q queries of one row against the keys of a span, block after block as they lie.
template <int Q, int HD>
static inline void fold(Queries<HD>& s, int i, const float* const* k, const float* const* v, int64_t stride, int D,
                        int block, int keys) {
  alignas(32) float score[Q * most_keys];
  for (int j = 0; j < keys; j += block) dots<Q>(s.q[i], s.width, k[j / block], stride, D, block, score + j);
  for (int e = 0; e < Q; e++) s.rise(i + e, score + e * most_keys, keys, D);
  for (int e = 0; e < Q; e++) s.weigh(i + e, score + e * most_keys, keys);
  for (int j = 0; j < keys; j += block) {
    const int part = std::min(block, keys - j);
    int d = 0;
    for (; d + 32 <= D; d += 32) gather<Q, 4>(s.acc[i] + d, s.width, score + j, v[j / block] + d, stride, part);
    for (; d < D; d += 16) gather<Q, 2>(s.acc[i] + d, s.width, score + j, v[j / block] + d, stride, part);
  }
}

// The keys of a span across and its values in columns of sixteen, [D / 16, most_keys, 16], both in the order of use.
template <int HD>
struct Span {
  alignas(64) float across[(HD ? HD : 256) * most_keys], values[(HD ? HD : 256) * most_keys];
};

// Six queries, of which `real` are no padding, against a span; query e sees keys[e] of it.
template <int HD>
static inline void fold_tile(Queries<HD>& s, int i, int real, const Span<HD>& span, int D, const int* keys) {
  alignas(32) float score[side * most_keys];
  const int most = *std::max_element(keys, keys + real);
  const int least = real == side ? std::max(0, *std::min_element(keys, keys + real)) : 0;
  for (int j = 0; j < most; j += 16) dots_across(s.q[i], s.width, span.across + j * D, D, score + j);
  for (int e = 0; e < real; e++)
    if (keys[e] > 0) s.rise(i + e, score + e * most_keys, keys[e], D);
  for (int e = 0; e < real; e++)
    if (keys[e] > 0) s.weigh(i + e, score + e * most_keys, keys[e]);
  for (int d = 0; d < D; d += 16) {
    const float* values = span.values + d * most_keys;
    gather<side, 2>(s.acc[i] + d, s.width, score, values, 16, least);
    for (int e = 0; e < real; e++)
      if (keys[e] > least)
        gather<1, 2>(s.acc[i + e] + d, s.width, score + e * most_keys + least, values + least * 16, 16, keys[e] - least);
  }
}

template <int HD>
static void attend(const Paged& a, int64_t head, int64_t first_context, int count, int64_t head_dim,
                   const std::function<bool()>& claim) {
  const int D = HD ? HD : (int)head_dim, block = (int)a.block, span = most_keys / block * block;
  Queries<HD> s;
  Span<HD> laid;
  const int G = (int)a.group, queries = count * G;
  for (int i = 0; i < queries; i++) {
    const float* from = a.q + (i / G) * a.q_stride + (head * G + i % G) * D;
    for (int d = 0; d < D; d += 8) {
      store(s.q[i] + d, load(from + d) * splat(a.scale));
      store(s.acc[i] + d, splat(0.f));
    }
    s.peak[i] = -std::numeric_limits<float>::infinity();
    s.sum[i] = 0.f;
  }
  const int64_t last = first_context + count - 1, stride = a.kv_heads * D;
  const auto at = [&](int64_t start) { return ((int64_t)a.table[start / block] * block * a.kv_heads + head) * D; };
  for (int64_t start = 0; start < last; start += span) {
    const float *k[most_keys / 8], *v[most_keys / 8];
    const int seen = (int)std::min<int64_t>(span, last - start);
    for (int j = 0; j < seen; j += block) {
      k[j / block] = a.k + at(start + j);
      v[j / block] = a.v + at(start + j);
    }
    // Blocks lie anywhere: the hardware does not guess the next one.
    for (int64_t j = start + span; j < std::min(last, start + 2 * span); j += block)
      for (int64_t e = 0, next = at(j); e < block; e++)
        for (int d = 0; d < D; d += 16) {
          __builtin_prefetch(a.k + next + e * stride + d, 0, 2);
          __builtin_prefetch(a.v + next + e * stride + d, 0, 2);
        }
    if (queries >= few_queries) {
      for (int j = 0; j < seen; j += 8) {
        const int64_t from = j % block * stride;
        lay_across(k[j / block] + from, stride, D, laid.across + j / 16 * 16 * D + j % 16);
        for (int d = 0; d < D; d += 8)
          for (int e = 0; e < 8; e++)
            store(laid.values + (d / 16 * most_keys + j + e) * 16 + d % 16, load(v[j / block] + from + e * stride + d));
      }
      for (int i = 0; i < queries; i += side) {
        int keys[side];
        for (int e = 0; e < side; e++) keys[e] = (int)std::min<int64_t>(span, first_context + (i + e) / G - start);
        fold_tile(s, i, std::min(side, queries - i), laid, D, keys);
      }
    } else {
      for (int row = 0; row < count; row++) {
        const int keys = (int)std::min<int64_t>(span, first_context + row - start);
        if (keys <= 0) continue;
        int i = row * G;
        for (; i + together <= (row + 1) * G; i += together) fold<together>(s, i, k, v, stride, D, block, keys);
        for (; i < (row + 1) * G; i++) fold<1>(s, i, k, v, stride, D, block, keys);
      }
    }
  }
  if (!claim()) return;
  for (int i = 0; i < queries; i++) {
    float* to = a.out + (i / G) * a.out_stride + (head * G + i % G) * D;
    for (int d = 0; d < D; d += 8) store(to + d, load(s.acc[i] + d) / splat(s.sum[i]));
  }
}

static void normalise(const float* x, const float* weight, float* y, int64_t n, float eps) {
  v8 squares = splat(0.f);
  for (int64_t i = 0; i < n; i += 8) squares = load(x + i) * load(x + i) + squares;
  const v8 scale = splat(1.f / std::sqrt(total(squares) / (float)n + eps));
  for (int64_t i = 0; i < n; i += 8) store(y + i, load(x + i) * scale * load(weight + i));
}

// One token per row: the cumulative distribution, in order of ids, inverted at units[m]. logits: [M, n].
extern "C" void hw_draw(const float* logits, int64_t stride, int64_t M, int64_t n, const float* temperature, const float* min_p,
             const int64_t* top_k, const double* top_p, const double* units, int32_t* tokens, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> p(n + 8);
    Histogram histogram;
#pragma omp for schedule(dynamic, 1)
    for (int64_t m = 0; m < M; m++)
      tokens[m] = draw(logits + m * stride, n, temperature[m], min_p[m], top_k[m], top_p[m], units[m], p.data(), histogram);
  }
}

// residual[M, n] += delta (where delta is not null); y = rms_norm(residual) * weight. n is a multiple of 8.
static void add_rms_norm(float* residual, const float* delta, int64_t delta_stride, const float* weight, float* y,
                         Part rows, int64_t n, float eps) {
  for (int64_t m = rows.begin; m < rows.end; m++) {
    float* r = residual + m * n;
    if (delta)
      for (int64_t i = 0; i < n; i += 8) store(r + i, load(r + i) + load(delta + m * delta_stride + i));
    normalise(r, weight, y + m * n, n, eps);
  }
}

// In place on qkv[M, stride]: optional per-head norms, rotary embedding by halves; then K and V go to their slots.
static void rope_store(float* qkv, int64_t stride, const float* cosine, const float* sine, const int32_t* positions,
                       const int64_t* slots, float* k_cache, float* v_cache, const float* q_norm, const float* k_norm,
                       float eps, Part rows, int64_t heads, int64_t kv_heads, int64_t D) {
  const int64_t half = D / 2;
  for (int64_t m = rows.begin; m < rows.end; m++) {
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
struct Attention {
  const float* q;
  int64_t q_stride;
  const float *k, *v;
  const int32_t* tables;
  int64_t table_stride;
  const int32_t *owners, *contexts, *starts;
  int64_t tiles;
  float* out;
  int64_t heads, kv_heads, D, block;
  float scale;

  int64_t pieces() const { return tiles * kv_heads; }

  // One KV head of one tile. `claim` says whether its rows may be written.
  void piece(int64_t i, const std::function<bool()>& claim) const {
    const int64_t tile = tiles - 1 - i / kv_heads, head = i % kv_heads;  // the longest contexts first: short ones even
    const int64_t m = starts[tile], G = heads / kv_heads;                // out the end
    const int count = starts[tile + 1] - starts[tile];
    Paged a{q + m * q_stride, k, v, out + m * heads * D, tables + (int64_t)owners[m] * table_stride,
            q_stride, heads * D, kv_heads, G, block, scale};
    if (contexts[m] == 0) {
      if (claim())
        for (int64_t e = 0; e < count; e++) std::memset(a.out + e * a.out_stride + head * G * D, 0, G * D * sizeof(float));
    } else if (D == 64) {
      attend<64>(a, head, contexts[m], count, D, claim);
    } else if (D == 128) {
      attend<128>(a, head, contexts[m], count, D, claim);
    } else {
      attend<0>(a, head, contexts[m], count, D, claim);
    }
  }
};

// y[M, n] = silu(x[:, :n]) * x[:, n:2n]. n is a multiple of 8.
static void silu_mul(const float* x, int64_t stride, float* y, int64_t y_stride, Part rows, int64_t n) {
  for (int64_t m = rows.begin; m < rows.end; m++)
    for (int64_t i = 0; i < n; i += 8) {
      const v8 gate = load(x + m * stride + i), up = load(x + m * stride + n + i);
      store(y + m * y_stride + i, gate / (splat(1.f) + exp8(-gate)) * up);
    }
}

// The operations of a layer, each in a region of its own.
extern "C" void hw_add_rms_norm(float* residual, const float* delta, int64_t delta_stride, const float* weight, float* y,
                     int64_t M, int64_t n, float eps, int threads) {
#pragma omp parallel num_threads(threads) if (M >= 8)
  add_rms_norm(residual, delta, delta_stride, weight, y, Part(M), n, eps);
}

extern "C" void hw_rope_store(float* qkv, int64_t stride, const float* cosine, const float* sine, const int32_t* positions,
                   const int64_t* slots, float* k_cache, float* v_cache, const float* q_norm, const float* k_norm,
                   float eps, int64_t M, int64_t heads, int64_t kv_heads, int64_t D, int threads) {
#pragma omp parallel num_threads(threads) if (M >= 8)
  rope_store(qkv, stride, cosine, sine, positions, slots, k_cache, v_cache, q_norm, k_norm, eps, Part(M), heads,
             kv_heads, D);
}

extern "C" void hw_attention(const float* q, int64_t q_stride, const float* k, const float* v, const int32_t* tables,
                  int64_t table_stride, const int32_t* owners, const int32_t* contexts, const int32_t* starts,
                  int64_t tiles, float* out, int64_t heads, int64_t kv_heads, int64_t D, int64_t block, float scale,
                  int threads) {
  const Attention a{q, q_stride, k, v, tables, table_stride, owners, contexts, starts, tiles, out, heads, kv_heads, D,
                    block, scale};
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < a.pieces(); i++) a.piece(i, [] { return true; });
}

extern "C" void hw_silu_mul(const float* x, int64_t stride, float* y, int64_t M, int64_t n, int threads) {
#pragma omp parallel num_threads(threads) if (M >= 4)
  silu_mul(x, stride, y, n, Part(M), n);
}

// All layers in one call: at one row the calls of a layer cost as much as a tenth of its products.
struct Product {
  const void* weight;
  const float* bias;
  int64_t inputs, outputs, panels, is_bf16;
};
struct Layer {
  const float *input_norm, *q_norm, *k_norm, *mlp_norm;
  Product qkv, out, gate_up, down;
  float *keys, *values;
};
struct Step {
  float *residual, *x, *qkv, *attended, *gate_up, *active, *delta;  // scratch, as wide as the panels of its product
  const float *cosines, *sines;
  const int32_t *positions, *tables, *owners, *contexts, *starts;
  const int64_t* slots;
  int64_t rows, tiles, table_stride, hidden, feed_forward, heads, kv_heads, head_dim, block;
  const int64_t* kept;  // ascending: of the last layer, what these rows need
  int64_t kept_rows;
  float eps, scale;
  int32_t threads;
};

// Rows of the last layer that nothing is sampled from end with their keys and values: the others close ranks. What is
// left of the step then; `room` holds its tables.
static Step kept_of(const Step& s, std::vector<int32_t>& room) {
  const int64_t n = s.kept_rows;
  room.resize(3 * n + 1);
  int32_t *owners = room.data(), *contexts = owners + n, *starts = contexts + n;
  for (int64_t i = 0; i < n; i++) {
    owners[i] = s.owners[s.kept[i]];
    contexts[i] = s.contexts[s.kept[i]];
    starts[i] = (int32_t)i;
  }
  starts[n] = (int32_t)n;
  Step left = s;
  left.owners = owners, left.contexts = contexts, left.starts = starts;
  left.rows = left.tiles = n;
  return left;
}

static void close_ranks(const Step& s, int64_t wide) {
  for (int64_t i = 0; i < s.kept_rows; i++) {
    std::memmove(s.qkv + i * wide, s.qkv + s.kept[i] * wide, wide * sizeof(float));
    std::memmove(s.residual + i * s.hidden, s.residual + s.kept[i] * s.hidden, s.hidden * sizeof(float));
  }
}

constexpr int64_t most_rows = 96, least_rows = 32;  // of a block

// How many pieces of some 50 us: all threads take as many, and one that loses its core keeps little from the others.
// A row less than six makes a product no faster: its weights come from memory.
static int64_t pieces_of(int64_t panels, int64_t inputs, int64_t rows, int64_t threads) {
  const int64_t each = panels * inputs * std::max<int64_t>(rows, 6) / (threads * 140000);
  return std::min(panels, threads * std::max<int64_t>(each, 1));
}

// What a team computes between two attentions. Few rows: of every product each member takes some of the panels, over
// all rows. Many rows: blocks of rows, each alone through all stages, so that what one stage leaves is still in the
// second cache when the next one reads it.
struct Cut {
  int64_t first, count, threads;
  Member* team;                 // null: one thread computes these rows alone
  float *x, *gate_up, *active;  // row `first` of the scratch
  int64_t gate_up_stride, active_stride;

  // What changes rows in place.
  template <typename Work>
  void rows(Work work) const {
    if (!team) return work(Part(count, 0, 1));
    const int64_t parts = std::min(threads, count);
    team->stage(parts, [&](int64_t i, auto claim) {
      if (claim()) work(Part(count, i, parts));
    });
  }
};

// Some panels of p into y, which begins with the first of them.
template <typename W>
static void some_panels(const Product& p, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t M, Part panels) {
  linear<W>(x, ldx, (const W*)p.weight + panels.begin * p.inputs * 16, y, ldy, M, p.inputs, Part(panels.count(), 0, 1));
  if (p.bias)
    for (int64_t m = 0; m < M; m++)
      for (int64_t n = panels.begin * 16; n < std::min(panels.end * 16, p.outputs); n++)
        y[m * ldy + n - panels.begin * 16] += p.bias[n];
}

static void some_panels(const Product& p, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t M, Part panels) {
  if (p.is_bf16) some_panels<uint16_t>(p, x, ldx, y, ldy, M, panels);
  else some_panels<float>(p, x, ldx, y, ldy, M, panels);
}

static void product(const Product& p, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t M, int64_t threads,
                    Member& team) {
  const int64_t pieces = pieces_of(p.panels, p.inputs, M, threads);
  team.stage(pieces, [&](int64_t i, auto claim) {
    static thread_local std::vector<float> own;
    const Part panels(p.panels, i, pieces);
    const int64_t width = panels.count() * 16, apart = width + 16;
    if ((int64_t)own.size() < M * apart) own.resize(M * apart);
    some_panels(p, x, ldx, own.data(), apart, M, panels);
    if (!claim()) return;
    for (int64_t m = 0; m < M; m++)
      std::memcpy(y + m * ldy + panels.begin * 16, own.data() + m * apart, width * sizeof(float));
  });
}

// One product in a region of its own.
template <typename W>
static void whole(const float* x, const W* w, float* y, int64_t M, int64_t K, int64_t panels, int threads) {
  const bool many_rows = threads == 1 || M >= least_rows * threads;
  const Product p{w, nullptr, K, panels * 16, panels, sizeof(W) == 2};
  Team team(panels);
#pragma omp parallel num_threads(threads)
  {
    Member me(team);
    if (many_rows) linear<W>(x, K, w, y, panels * 16, M, K, Part(panels));
    else product(p, x, K, y, panels * 16, M, threads, me);
  }
}

extern "C" void hw_linear_f32(const float* x, const float* w, float* y, int64_t M, int64_t K, int64_t panels,
                              int threads) {
  whole(x, w, y, M, K, panels, threads);
}

extern "C" void hw_linear_bf16(const float* x, const uint16_t* w, float* y, int64_t M, int64_t K, int64_t panels,
                               int threads) {
  whole(x, w, y, M, K, panels, threads);
}

static void product(const Product& p, const float* x, int64_t ldx, float* y, int64_t ldy, const Cut& c) {
  if (c.team) product(p, x, ldx, y, ldy, c.count, c.threads, *c.team);
  else some_panels(p, x, ldx, y, ldy, c.count, Part(p.panels, 0, 1));
}

// From the attention of one layer (null: from the embedding) to that of the next (null: to the end, where the last
// product is left in delta, not yet added to the residual).
static void between(const Layer* done, const Layer* next, const Step& s, const Cut& c) {
  const int64_t width = s.heads * s.head_dim, at = c.first;
  float* residual = s.residual + at * s.hidden;
  if (done) {
    const int64_t back = done->out.panels * 16;
    float* delta = s.delta + at * back;
    product(done->out, s.attended + at * width, width, delta, back, c);
    c.rows([&](Part rows) { add_rms_norm(residual, delta, back, done->mlp_norm, c.x, rows, s.hidden, s.eps); });
    product(done->gate_up, c.x, s.hidden, c.gate_up, c.gate_up_stride, c);
    c.rows([&](Part rows) { silu_mul(c.gate_up, c.gate_up_stride, c.active, c.active_stride, rows, s.feed_forward); });
    product(done->down, c.active, c.active_stride, delta, back, c);
  }
  if (next) {
    const int64_t back = done ? done->down.panels * 16 : 0, wide = next->qkv.panels * 16;
    float* qkv = s.qkv + at * wide;
    c.rows([&](Part rows) {
      add_rms_norm(residual, done ? s.delta + at * back : nullptr, back, next->input_norm, c.x, rows, s.hidden, s.eps);
    });
    product(next->qkv, c.x, s.hidden, qkv, wide, c);
    c.rows([&](Part rows) {
      rope_store(qkv, wide, s.cosines, s.sines, s.positions + at, s.slots + at, next->keys, next->values, next->q_norm,
                 next->k_norm, s.eps, rows, s.heads, s.kv_heads, s.head_dim);
    });
  }
}

static bool in_blocks(const Step& s) { return s.rows >= least_rows * s.threads; }

static void stage(const Layer* done, const Layer* next, const Step& s, Member& team) {
  const int64_t threads = s.threads, gate_up = (done ? done : next)->gate_up.panels * 16;
  if (!in_blocks(s)) {
    between(done, next, s,
            Cut{0, s.rows, threads, threads > 1 ? &team : nullptr, s.x, s.gate_up, s.active, gate_up, s.feed_forward});
    return;
  }
  const int64_t blocks = (s.rows + most_rows * threads - 1) / (most_rows * threads) * threads;
  const int64_t height = (s.rows + blocks * 6 - 1) / (blocks * 6) * 6;
  const int64_t apart = 16;  // floats: rows a multiple of 4 KiB apart would share one set of the first cache
  team.stage((s.rows + height - 1) / height, [&](int64_t i, auto claim) {
    if (!claim()) return;
    static thread_local std::vector<float> own;
    const size_t needed = most_rows * (s.hidden + gate_up + s.feed_forward + 2 * apart);
    if (own.size() < needed) own.resize(needed);
    Cut c{i * height, std::min(height, s.rows - i * height), 1, nullptr, own.data(), nullptr, nullptr,
          gate_up + apart, s.feed_forward + apart};
    c.gate_up = c.x + height * s.hidden;
    c.active = c.gate_up + height * c.gate_up_stride;
    between(done, next, s, c);
  });
}

static void attention(const Layer& l, const Step& s, Member& team) {
  const Attention a{s.qkv, l.qkv.panels * 16, l.keys, l.values, s.tables, s.table_stride, s.owners, s.contexts,
                    s.starts, s.tiles, s.attended, s.heads, s.kv_heads, s.head_dim, s.block, s.scale};
  const bool long_pieces = in_blocks(s);  // not worth computing twice
  team.stage(a.pieces(), [&](int64_t i, auto claim) {
    if (!long_pieces) a.piece(i, claim);
    else if (claim()) a.piece(i, [] { return true; });
  });
}

static int64_t most_pieces(const Layer* layers, int64_t count, const Step& s) {
  int64_t most = std::max(s.tiles * s.kv_heads, s.kept_rows * s.kv_heads);
  most = std::max({most, s.rows, (int64_t)s.threads});
  for (const Layer* l = layers; l < layers + count; l++)
    most = std::max({most, l->qkv.panels, l->out.panels, l->gate_up.panels, l->down.panels});
  return most;
}

// Delta and residual hold the kept rows, in their order. One region for all: five regions a layer cost two threads at
// one row more than they gain.
extern "C" void hw_layers(const Layer* layers, int64_t count, const Step* step) {
  std::vector<int32_t> room;
  const Step left = kept_of(*step, room);
  Team team(most_pieces(layers, count, *step));
#pragma omp parallel num_threads(step->threads)
  {
    Member me(team);
    const Step* s = step;
    const Layer* done = nullptr;
    for (const Layer* l = layers; l < layers + count; done = l++) {
      stage(done, l, *s, me);
      if (l == layers + count - 1 && step->kept_rows < step->rows) {
        me.stage(1, [&](int64_t, auto claim) {
          if (claim()) close_ranks(*step, l->qkv.panels * 16);
        });
        s = &left;
      }
      attention(*l, *s, me);
    }
    if (done) stage(done, nullptr, *s, me);
  }
}

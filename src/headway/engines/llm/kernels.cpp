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
#include <functional>
#include <limits>
#include <vector>

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

template <typename W>
static void linear(const float* x, const W* w, float* y, int64_t M, int64_t K, int64_t panels, int threads) {
  constexpr int64_t kc = 288;  // the panel's part and the rows of a tile stay in the first cache
  const int64_t ld = panels * 16, panel = K * 16;
  // Few rows: wide tiles hide the latency of the single accumulation chain. Many rows: tall tiles reuse the weights.
  const int64_t group = M <= 1 ? 4 : M <= 2 ? 2 : 1;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t g = 0; g < (panels + group - 1) / group; g++) {
    const int64_t first = g * group, count = std::min(group, panels - first);
    for (int64_t k = 0; k < K; k += kc) {
      const int64_t depth = std::min(kc, K - k);
      const W* from = w + first * panel + k * 16;
      float* to = y + first * 16;
      if (count == 4) {
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
// registers of AVX2, and every key and value is loaded once for all three.
constexpr int together = 3, most_queries = 32, most_keys = 64;

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

// acc[i][0 : 8 * C] += sum over keys, ascending, of weight[i][j] * v[j].
template <int Q, int C>
static inline void gather(float* acc, int64_t width, const float* weight, const float* v, int64_t stride, int keys) {
  v8 s[Q][C];
  for (int i = 0; i < Q; i++)
    for (int c = 0; c < C; c++) s[i][c] = load(acc + i * width + 8 * c);
  for (int j = 0; j < keys; j++) {
    v8 w[Q];
    for (int i = 0; i < Q; i++) w[i] = splat(weight[i * most_keys + j]);
    for (int c = 0; c < C; c++) {
      const v8 value = held(load(v + j * stride + 8 * c));
      for (int i = 0; i < Q; i++) s[i][c] = w[i] * value + s[i][c];
    }
  }
  for (int i = 0; i < Q; i++)
    for (int c = 0; c < C; c++) store(acc + i * width + 8 * c, s[i][c]);
}

static inline v8 larger(v8 a, v8 b) { return a > b ? a : b; }
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

// Queries of one row against `keys` keys of one block: softmax as it runs.
template <int Q>
static inline void fold(const float* q, float* acc, int64_t width, float* peak, float* sum, const float* k,
                        const float* v, int64_t stride, int D, int block, int keys) {
  alignas(32) float score[Q * most_keys];
  dots<Q>(q, width, k, stride, D, block, score);
  for (int i = 0; i < Q; i++) {
    float* mine = score + i * most_keys;
    for (int j = keys; j < block; j++) mine[j] = -std::numeric_limits<float>::infinity();
    v8 tops = load(mine);
    for (int j = 8; j < block; j += 8) tops = larger(load(mine + j), tops);
    const float top = std::max(peak[i], largest(tops));
    if (top != peak[i]) {
      const float shrink = sum[i] == 0.f ? 0.f : exp8(splat(peak[i] - top))[0];
      for (int d = 0; d < D; d += 8) store(acc + i * width + d, load(acc + i * width + d) * splat(shrink));
      sum[i] *= shrink;
      peak[i] = top;
    }
  }
  v8 weights[Q];
  for (int i = 0; i < Q; i++) weights[i] = splat(0.f);
  for (int j = 0; j < block; j += 8)
    for (int i = 0; i < Q; i++) {  // side by side: one exponential alone is a long chain
      const v8 e = exp8(load(score + i * most_keys + j) - splat(peak[i]));
      store(score + i * most_keys + j, e);
      weights[i] = weights[i] + e;
    }
  for (int i = 0; i < Q; i++) sum[i] += total(weights[i]);
  int d = 0;
  for (; d + 32 <= D; d += 32) gather<Q, 4>(acc + d, width, score, v + d, stride, keys);
  for (; d < D; d += 16) gather<Q, 2>(acc + d, width, score, v + d, stride, keys);
}

template <int HD>
static void attend(const Paged& a, int64_t head, int64_t first_context, int count, int64_t head_dim) {
  const int D = HD ? HD : (int)head_dim, block = (int)a.block;
  constexpr int width = HD ? HD : 256;
  alignas(32) float q[most_queries][width], acc[most_queries][width];
  float peak[most_queries], sum[most_queries];
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
  const auto at = [&](int64_t start) { return ((int64_t)a.table[start / block] * block * a.kv_heads + head) * D; };
  for (int64_t start = 0; start < last; start += block) {
    const float *k = a.k + at(start), *v = a.v + at(start);
    if (start + block < last)  // blocks lie anywhere: the hardware does not guess the next one
      for (int64_t j = 0, next = at(start + block); j < block; j++)
        for (int d = 0; d < D; d += 16) {
          __builtin_prefetch(a.k + next + j * stride + d);
          __builtin_prefetch(a.v + next + j * stride + d);
        }
    for (int row = 0; row < count; row++) {
      const int64_t context = first_context + row;
      if (context <= start) continue;
      const int keys = (int)std::min<int64_t>(block, context - start), from = row * G;
      int i = 0;
      for (; i + together <= G; i += together)
        fold<together>(q[from + i], acc[from + i], width, peak + from + i, sum + from + i, k, v, stride, D, block, keys);
      for (; i < G; i++)
        fold<1>(q[from + i], acc[from + i], width, peak + from + i, sum + from + i, k, v, stride, D, block, keys);
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

extern "C" {

// One token per row: the cumulative distribution, in order of ids, inverted at units[m]. logits: [M, n].
void hw_draw(const float* logits, int64_t stride, int64_t M, int64_t n, const float* temperature, const float* min_p,
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
  float eps, scale;
  int32_t threads;
};

static void product(const Product& p, const float* x, float* y, const Step& s) {
  if (p.is_bf16) linear<uint16_t>(x, (const uint16_t*)p.weight, y, s.rows, p.inputs, p.panels, s.threads);
  else linear<float>(x, (const float*)p.weight, y, s.rows, p.inputs, p.panels, s.threads);
  if (p.bias)
    for (int64_t m = 0; m < s.rows; m++)
      for (int64_t n = 0; n < p.outputs; n++) y[m * p.panels * 16 + n] += p.bias[n];
}

// The last product is left in delta, not yet added to the residual.
void hw_layers(const Layer* layers, int64_t count, const Step* step) {
  const Step& s = *step;
  for (const Layer* l = layers; l < layers + count; l++) {
    const int64_t wide = l->qkv.panels * 16, back = l->down.panels * 16;
    hw_add_rms_norm(s.residual, l == layers ? nullptr : s.delta, back, l->input_norm, s.x, s.rows, s.hidden, s.eps, s.threads);
    product(l->qkv, s.x, s.qkv, s);
    hw_rope_store(s.qkv, wide, s.cosines, s.sines, s.positions, s.slots, l->keys, l->values, l->q_norm, l->k_norm, s.eps,
                  s.rows, s.heads, s.kv_heads, s.head_dim, s.threads);
    hw_attention(s.qkv, wide, l->keys, l->values, s.tables, s.table_stride, s.owners, s.contexts, s.starts, s.tiles,
                 s.attended, s.heads, s.kv_heads, s.head_dim, s.block, s.scale, s.threads);
    product(l->out, s.attended, s.delta, s);
    hw_add_rms_norm(s.residual, s.delta, l->out.panels * 16, l->mlp_norm, s.x, s.rows, s.hidden, s.eps, s.threads);
    product(l->gate_up, s.x, s.gate_up, s);
    hw_silu_mul(s.gate_up, l->gate_up.panels * 16, s.active, s.rows, s.feed_forward, s.threads);
    product(l->down, s.active, s.delta, s);
  }
}
}

// Perceptrons with a policy and a value head: acting, and the whole of an optimizer step (gather,
// forward, loss, backward, clip, Adam), in tiles of rows that stay in cache. Of recurrent layers, what
// is computed for each number between the products of matrices.
//
// Compiled once a processor level (LEVEL is the suffix of its functions), each with the vectors that
// the level has; Python chooses the level. Plain C interface, no library but libm. Numbers are
// float32 or float64. Nothing here assumes that numbers are finite: NaN and infinity reach the
// results as they do in PyTorch, except from rows whose mask is 0, which reach nothing.
//
// The mathematics is that of losses.py, advantages.py and distributions/, where sources are named.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#if defined(DISPATCHES) && defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define HAS_THREADS 1
#else
#define HAS_THREADS 0
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define EXPORT(name) extern "C" __attribute__((visibility("default"))) int64_t JOIN(everstep_##name, LEVEL)
#define INLINE inline __attribute__((always_inline))

// ---- what Python gives (core/fast/library.py has the same structures) ---------------------------

struct Layer {  // y = f(x·weightᵀ + bias); gradients are added; null: no bias, or not trained
  const void *weight, *bias;
  void *weight_grad, *bias_grad;
  int64_t inputs, outputs, activation;
};

struct Leaf {  // of observations: numbers, or choices (int64), which become one-hot vectors
  int64_t size, column;                 // numbers or choices; where it begins in the networks' input
  const int64_t* options;               // of each choice; null: numbers
  const void* constants;  // of the normaliser of numbers, [4, size]; null: none
};

struct Model {
  int64_t is_double, kind, threads;
  int64_t counts[3];       // layers of the trunk, the policy and the values, in this order
  const Layer* layers;     // the last of the policy and of the values are linear
  int64_t leaf_count;
  const Leaf* leaves;
  int64_t critic_column;   // where the values' input begins, if they have another one than the policy
  int64_t choices;         // of an action
  const int64_t* options;  // of each choice
  const void* log_std;     // of the deviations that are parameters
  void* log_std_grad;
  const void *side, *log_half;     // of the squash of each number, see log_slope; null: none
  const void *low, *high, *half;   // range of each number, for the bounds loss
  const void *value_mean, *value_scale;  // values = mean + scale·outputs; null: values are the outputs
};

struct Batch {  // rows `index`, or the first `rows`
  int64_t rows;
  const int64_t* index;
  const void* const* obs;  // of each leaf
  const uint8_t* allowed;  // options that are not masked, [rows, width]; null: all
  const void* actions;     // int64 for choices
  const void* noise;       // that entropies of squashed numbers are estimated with, of each of `rows`
  const void *logp, *advantages, *returns, *values;
  const void* weight;   // shares of the loss; null: `mask`, shared equally
  const uint8_t* mask;  // rows that enter the loss; null: all
  int64_t standardized;  // whether to standardise advantages over the rows
};

struct Loss {
  int64_t is_ppo, uses_entropy, is_mse;
  double clip, dual_clip, vf_coeff, vf_clip, entropy_coeff, bounds_coeff;  // a clip that is NaN: none
};

struct Parameter {
  void *value, *grad, *mean, *square;
  float* step;
  int64_t size;
  double lr, beta1, beta2, eps, decay;
  int64_t is_decoupled, maximizes;
};

struct Optimizer {
  int64_t count;
  Parameter* parameters;
  double max_norm, target_kl;  // NaN: none
};

// A layer of LSTM or GRU cells and its sequences, time first. G·size numbers a row, G = 4 (i, f, g, o)
// or 3 (r, z, n): gates as PyTorch orders them.
struct Cells {
  int64_t is_double, is_gru, threads, steps, rows, size;
  void* gates;           // [steps, rows, G·size] sums of products, which become activations
  void* inner;           // GRU: [rows, G·size], products of the state and their biases
  void *hidden, *cell;   // [steps + 1, rows, size] before each step, as they are reset; GRU: no cell
  void* kept;            // [steps, rows, size] for derivatives: tanh of the cell; GRU: `inner` of n; or null
  void* latents;         // [rows, steps, size] results; null: `hidden` has them
  const uint8_t* first;  // [steps, rows], whether states are zeros before a step other than the first; null: never
  const void* d_latents;  // [rows, steps, size] their derivatives; null: zeros
  void *d_gates, *d_inner;  // [steps, rows, G·size] of the sums; GRU: of `inner`
  void *d_hidden, *d_cell;  // [rows, size] of the states after a step, which become those of before; of
                            // the hidden state without what comes through `d_gates` or `d_inner`
};

struct Acting {  // in a rollout, whose rows are [steps, rows, …]
  void* engine;
  int64_t is_double, rows;
  const void* const* obs;  // of each leaf
  int64_t is_whole;        // whether `obs` are those of all steps, else of one
  const uint8_t* allowed;  // options that are not masked, [rows, width]; null: all
  const void* noise;       // [rows, …], of choices uniform float64, else normal; null: the likeliest actions
  void* outputs;           // [rows, width]
  void *values, *actions, *logp;
};

enum Kind { CATEGORICAL, NORMAL, PREDICTED_NORMAL };
enum Activation { NONE, RELU, TANH, SIGMOID, ELU, SILU, GELU, TANH_GELU, SELU, LEAKY_RELU, SQUARED_RELU, HARD_TANH, RELU6 };
enum Result { POLICY, VALUE, ENTROPY, KL, CLIPPED, BOUNDS, NORM, RESULTS };
enum Outcome { STEPPED, SKIPPED, REFUSED };

namespace {

// ---- vectors -------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int BYTES = 64, MAX_ROWS = 12, WIDE = 4;
#elif defined(__AVX__)
constexpr int BYTES = 32, MAX_ROWS = 6, WIDE = 2;
#else
constexpr int BYTES = 16, MAX_ROWS = 4, WIDE = 2;
#endif

template <class T> struct Types;
template <> struct Types<float> {
  typedef float V __attribute__((vector_size(BYTES), aligned(4), may_alias));
  typedef float Short __attribute__((vector_size(16), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(BYTES), aligned(4), may_alias));
  typedef int32_t Int;
  static constexpr int mantissa = 23, bias = 127, terms = 7, artanh = 4, chebyshev = 11;
  static constexpr float magic = 12582912.f;  // 1.5·2²³: adding it rounds to an integer
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float least = -86.6f, most = 88.7228394f, saturated = 10.f;
};
template <> struct Types<double> {
  typedef double V __attribute__((vector_size(BYTES), aligned(8), may_alias));
  typedef double Short __attribute__((vector_size(16), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(BYTES), aligned(8), may_alias));
  typedef int64_t Int;
  static constexpr int mantissa = 52, bias = 1023, terms = 14, artanh = 10, chebyshev = 24;
  static constexpr double magic = 6755399441055744.0;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
  static constexpr double least = -707.7, most = 709.782712893384, saturated = 20.0;
};
template <class T> using V = typename Types<T>::V;
template <class T> constexpr int LANES = BYTES / sizeof(T);

template <class T> INLINE V<T> load(const T* p) { return *(const V<T>*)p; }
template <class T> INLINE void store(T* p, V<T> x) { *(V<T>*)p = x; }
template <class T> INLINE V<T> all(T x) { return x - V<T>{}; }
template <class T> INLINE T sum(V<T> x) {
  T total = 0;
  for (int i = 0; i < LANES<T>; i++) total += x[i];
  return total;
}
// A vector of a number that the compiler does not know: of known ones GCC makes no minimum and no maximum.
template <class T> INLINE V<T> unknown(T x) {
  asm("" : "+r"(x));
  return all<T>(x);
}
// NaN stays: a comparison with it is false.
template <class T> INLINE V<T> clamp(V<T> x, T low, T high) {
  const V<T> least = unknown(low), most = unknown(high);
  x = x < least ? least : x;
  return most < x ? most : x;
}
template <class T> INLINE T total(const T* x, int64_t n) {
  V<T> sums{};
  int64_t i = 0;
  for (; i + LANES<T> <= n; i += LANES<T>) sums += load<T>(x + i);
  T rest = sum<T>(sums);
  for (; i < n; i++) rest += x[i];
  return rest;
}
template <class T> INLINE V<T> absolute(V<T> x) { return x < T(0) ? -x : x; }

// ½·2ⁿ, and eʳ − 1 where x = n·ln 2 + r. Errors in units in the last place of float32, measured over
// 4.5 million numbers by tests/everstep/core/fast/test_kernel.py: exponential 1, expm1 2, tanh 6,
// sigmoid 3, logarithm 1, softplus 2. What is below 2.5e-38 is 0: subnormal numbers are multiplied slowly.
template <class T> INLINE void reduce(V<T> x, V<T>& half, V<T>& rest) {
  using I = typename Types<T>::I;
  V<T> shifted = x * T(1.4426950408889634) + Types<T>::magic;
  V<T> n = shifted - Types<T>::magic;
  V<T> r = x - n * Types<T>::ln2_high - n * Types<T>::ln2_low;
  // The low bits of `shifted` are n.
  I bits = (I)shifted - ((I)all<T>(Types<T>::magic) - (Types<T>::bias - 1));
  half = (V<T>)(bits << Types<T>::mantissa);
  // Taylor's series: |r| ≤ ½ ln 2, so terms beyond these are below the last place.
  T factor = 1;
  for (int k = 2; k <= Types<T>::terms; k++) factor /= k;
  V<T> p = all<T>(factor);
  for (int k = Types<T>::terms; k > 2; k--) p = p * r + (factor *= k);
  rest = r + r * r * p;
}
template <class T> INLINE V<T> exponential(V<T> x) {
  V<T> half, rest;
  reduce<T>(clamp<T>(x, Types<T>::least, Types<T>::most), half, rest);
  V<T> y = half * rest + half;
  y = x < Types<T>::least ? V<T>{} : y + y;
  return x > Types<T>::most ? all<T>(std::numeric_limits<T>::infinity()) : y;
}
template <class T> INLINE V<T> expm1(V<T> x) {
  V<T> half, rest;
  reduce<T>(clamp<T>(x, Types<T>::least, Types<T>::most), half, rest);
  V<T> y = half * rest + (half - T(0.5));
  return x > Types<T>::most ? all<T>(std::numeric_limits<T>::infinity()) : y + y;
}
// x·P(x²)/Q(x²), the minimax approximation up to 9.1, from where on float32 has 1. Q is finite and above 0, also of NaN.
// Of small numbers, below 7, the bounds have no effect and are left out: they would be an eighth of the work.
typedef uint32_t Unsigned __attribute__((vector_size(BYTES)));  // of positive numbers they are in their order, and NaN's above
template <bool IS_SMALL> struct Tanh {
  V<float> x, p, q;
  INLINE explicit Tanh(V<float> given) : x(given) {
    constexpr uint32_t most = 0x42A59EB8;  // 9.1²
    Unsigned bits = (Unsigned)(x * x);
    if (!IS_SMALL) bits = bits > most ? Unsigned{} + most : bits;
    const V<float> y = (V<float>)bits;
    p = (((y * 1.3179484393452684e-8f + 2.0482790107508099e-5f) * y + 0.0034879171227705645f) * y + 0.13374567592249599f) * y + 0.99999997788936048f;
    q = (((y * 7.7049036927799394e-7f + 0.0003273087474120067f) * y + 0.025847801543255027f) * y + 0.46707881573747361f) * y + 1.f;
  }
  INLINE V<float> times(V<float> inverse) const {
    const V<float> found = x * (p * inverse);
    return IS_SMALL ? found : clamp<float>(found, -1, 1);
  }
};
template <class T> INLINE V<T> tanh(V<T> x) {
  if constexpr (std::is_same_v<T, float>) {
    const Tanh<false> found(x);
    return found.times(1.f / found.q);
  }
  V<T> half, rest;  // e/(e + 2), e = e²ˣ − 1
  reduce<T>(clamp<T>(x + x, -2 * Types<T>::saturated, 2 * Types<T>::saturated), half, rest);
  V<T> e = half * rest + (half - T(0.5));
  return e / (e + T(1));
}
// Of as many vectors as the registers hold, with one division, which takes as long as half of the rest.
constexpr int TOGETHER = BYTES == 64 ? 4 : 2;
template <bool IS_SMALL> INLINE void tanh_of_floats(float* numbers) {
  constexpr int size = LANES<float>;
  using F = Tanh<IS_SMALL>;
  auto write = [](float* to, const F& x, const F& y, V<float> inverse) {
    store<float>(to, x.times(inverse * y.q));
    store<float>(to + size, y.times(inverse * x.q));
  };
  const F a(load<float>(numbers)), b(load<float>(numbers + size));
  const V<float> ab = a.q * b.q;
  if constexpr (TOGETHER == 2) return write(numbers, a, b, 1.f / ab);
  const F c(load<float>(numbers + 2 * size)), d(load<float>(numbers + 3 * size));
  const V<float> cd = c.q * d.q, inverse = 1.f / (ab * cd);
  write(numbers, a, b, inverse * cd);
  write(numbers + 2 * size, c, d, inverse * ab);
}
template <class T> INLINE void tanh_together(T* numbers) {
  constexpr int count = TOGETHER * LANES<T>;
  if constexpr (std::is_same_v<T, float>) {
#if defined(__AVX512F__)  // elsewhere it takes as long to ask
    Unsigned most{};
    for (int i = 0; i < count; i += LANES<T>) {
      const V<T> x = load<T>(numbers + i);
      const Unsigned bits = (Unsigned)(x * x);
      most = bits > most ? bits : most;
    }
    const bool are_small = !_mm512_cmpgt_epu32_mask((__m512i)most, _mm512_set1_epi32(0x42440000));  // 7²
    if (are_small) return tanh_of_floats<true>(numbers);
#endif
    tanh_of_floats<false>(numbers);
  } else
    for (int i = 0; i < count; i += LANES<T>) store<T>(numbers + i, tanh<T>(load<T>(numbers + i)));
}
template <class T> INLINE V<T> sigmoid(V<T> x) { return T(1) / (T(1) + exponential<T>(-x)); }

// erfc(z) = exp(−z²)·t·P(2t − 1) with t = 1/(1 + 0.3 z), z ≥ 0: P's Chebyshev series, from 40 digits.
constexpr double ERFC[] = {
    0.44696841197227814521, 0.37816898558056910563, 0.12971546276927751302, 0.035965752514576161047,
    0.0078389432400968699495, 0.0012428140574333421761, 1.0874067969909917830e-4, -5.7439880990715496539e-6,
    -3.1747672924631081503e-6, -2.5711471669769271498e-7, 5.4380084987862937338e-8, 1.1812054901879373455e-8,
    -7.4908846431427992791e-10, -4.0758788370361275637e-10, 7.1181973005807557374e-12, 1.4109423972719825806e-11,
    -1.3246652316929596274e-14, -5.2263491854520888746e-13, 3.4203280164684996247e-15, 2.0730317707692626929e-14,
    -6.7837250850956161188e-16, -8.5357739212562511389e-16, 6.7539258024638048035e-17, 3.4608702586323512673e-17};

// Φ(x) and φ(x), the distribution function and density of the standard normal.
template <class T> INLINE void standard_normal(V<T> x, V<T>& probability, V<T>& density) {
  V<T> t = T(1) / (T(1) + absolute<T>(x) * T(0.3 * 0.70710678118654752440)), s = t + t - T(1);
  V<T> last{}, before{};
  for (int k = Types<T>::chebyshev - 1; k > 0; k--) {  // Clenshaw
    V<T> next = (s + s) * last - before + T(ERFC[k]);
    before = last;
    last = next;
  }
  V<T> e = exponential<T>(x * x * T(-0.5)), tail = T(0.5) * e * t * (s * last - before + T(ERFC[0]));
  probability = x < T(0) ? tail : T(1) - tail;
  density = e * T(0.39894228040143267794);
}

// log x of normal numbers above 0; NaN and infinity stay.
template <class T> INLINE V<T> logarithm(V<T> x) {
  using I = typename Types<T>::I;
  constexpr T root = T(0.70710678118654752440);  // x = m·2ⁿ, √½ ≤ m < √2
  const I n = ((I)x - (I)all<T>(root)) >> Types<T>::mantissa;
  const V<T> f = (V<T>)((I)x - (n << Types<T>::mantissa)) - T(1), count = __builtin_convertvector(n, V<T>);
  // log(1 + f) = 2 artanh(s) = 2s + 2s³/3 + …, and 2s = f − s·f.
  const V<T> s = f / (f + T(2)), z = s * s;
  V<T> rest = all<T>(T(2.0 / (2 * Types<T>::artanh + 1)));
  for (int k = Types<T>::artanh - 1; k > 0; k--) rest = rest * z + T(2.0 / (2 * k + 1));
  const V<T> y = f - s * (f - z * rest) + count * Types<T>::ln2_low + count * Types<T>::ln2_high;
  return x - x == T(0) ? y : x;
}
// log(1 + eˣ); PyTorch's has that threshold.
template <class T> INLINE V<T> softplus(V<T> x) {
  // What the sum has lost of y is made good by the derivative of the logarithm.
  const V<T> y = exponential<T>(x), total = y + T(1);
  return x > T(20) ? x : logarithm<T>(total) + (y - (total - T(1))) / total;
}

// ---- products of matrices ------------------------------------------------------------------------

template <class T> struct Matrix { T* at; int64_t row, column; };  // distances of rows and columns

// ROWS × COLUMNS·LANES numbers of C = A·B (+ bias, or + C), kept in registers.
template <class T, int ROWS, int COLUMNS>
INLINE void block(int64_t K, Matrix<const T> a, const T* b, int64_t ldb, T* c, int64_t ldc,
                  const T* bias, bool adds) {
  V<T> sums[ROWS][COLUMNS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j++)
      sums[i][j] = adds ? load<T>(c + i * ldc + j * LANES<T>) : bias ? load<T>(bias + j * LANES<T>) : V<T>{};
  for (int64_t k = 0; k < K; k++) {
    V<T> columns[COLUMNS];
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j++) columns[j] = load<T>(b + k * ldb + j * LANES<T>);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      T x = a.at[i * a.row + k * a.column];
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; j++) sums[i][j] += x * columns[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int j = 0; j < COLUMNS; j++) store<T>(c + i * ldc + j * LANES<T>, sums[i][j]);
}

template <class T, int ROWS, int COLUMNS>
void rows_of(int64_t M, int64_t K, Matrix<const T> a, const T* b, int64_t ldb, T* c, int64_t ldc,
                  const T* bias, bool adds) {
  if constexpr (ROWS > 0) {
    if (M == ROWS) block<T, ROWS, COLUMNS>(K, a, b, ldb, c, ldc, bias, adds);
    else rows_of<T, ROWS - 1, COLUMNS>(M, K, a, b, ldb, c, ldc, bias, adds);
  }
}

// Rows whose sums fit in the registers; of few vectors of columns some are left for what is loaded.
template <int COLUMNS> constexpr int ROWS_OF = COLUMNS < 4 ? MAX_ROWS : MAX_ROWS / 2;

template <class T, int COLUMNS>
void columns_of(int64_t M, int64_t K, Matrix<const T> a, const T* b, int64_t ldb, T* c, int64_t ldc,
                const T* bias, bool adds) {
  constexpr int ROWS = ROWS_OF<COLUMNS>;
  int64_t i = 0;
  for (; i + ROWS <= M; i += ROWS)
    block<T, ROWS, COLUMNS>(K, {a.at + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, bias, adds);
  rows_of<T, ROWS - 1, COLUMNS>(M - i, K, {a.at + i * a.row, a.row, a.column}, b, ldb, c + i * ldc, ldc, bias, adds);
}

// Bytes of B's columns that stay in the first cache beside the rest.
constexpr int64_t WIDE_CACHE = 32768;

// C[M, N] = A[M, K]·B[K, N] (+ bias, or + C); N is a multiple of LANES.
template <class T>
void product(int64_t M, int64_t N, int64_t K, Matrix<const T> a, const T* b, int64_t ldb, T* c,
             int64_t ldc, const T* bias, bool adds) {
  constexpr int L = LANES<T>;
  int64_t j = 0;
  for (; WIDE < 4 && M <= 2 && j + 4 * L <= N; j += 4 * L)
    rows_of<T, 2, 4>(M, K, a, b + j, ldb, c + j, ldc, bias ? bias + j : nullptr, adds);
  const bool stays = K * 4 * BYTES <= WIDE_CACHE;
  for (; WIDE == 4 && stays && j + 4 * L <= N; j += 4 * L)
    columns_of<T, WIDE>(M, K, a, b + j, ldb, c + j, ldc, bias ? bias + j : nullptr, adds);
  for (; j + 2 * L <= N; j += 2 * L)
    columns_of<T, 2>(M, K, a, b + j, ldb, c + j, ldc, bias ? bias + j : nullptr, adds);
  if (j < N) columns_of<T, 1>(M, K, a, b + j, ldb, c + j, ldc, bias ? bias + j : nullptr, adds);
}

// Cᵀ[N, M] of C = A·Bᵀ + bias for few columns, where vectors of columns would be padding mostly: each number
// is the sum of a vector. `b` is [N, K]; K is a multiple of LANES; M is rounded up to one.
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_shufflevector)
constexpr bool CAN_SHUFFLE = true;
template <class T, int S, size_t... I> INLINE V<T> fold_two(V<T> x, V<T> y, std::index_sequence<I...>) {
  return __builtin_shufflevector(x, y, (I & S ? I + LANES<T> : I)...) + __builtin_shufflevector(x, y, (I & S ? I - S + LANES<T> : I + S)...);
}
// The sums of 2·S vectors, each in its own lane.
template <class T, int S> INLINE V<T> fold(const V<T>* x) {
  if constexpr (S == 0) return *x;
  else return fold_two<T, S>(fold<T, S / 2>(x), fold<T, S / 2>(x + S), std::make_index_sequence<LANES<T>>{});
}
#else
constexpr bool CAN_SHUFFLE = false;
template <class T, int S> INLINE V<T> fold(const V<T>* x) { return *x; }
#endif
template <class T>
void narrow_product(int64_t M, int64_t N, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc, const T* bias) {
  constexpr int L = LANES<T>;
  for (int64_t i = 0; i < M; i += L)
    for (int64_t n = 0; n < N; n++) {
      V<T> sums[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; r++) sums[r] = load<T>(a + (i + r) * lda) * load<T>(b + n * ldb);
      for (int64_t k = L; k < K; k += L) {
        const V<T> y = load<T>(b + n * ldb + k);
#pragma GCC unroll 16
        for (int r = 0; r < L; r++) sums[r] += load<T>(a + (i + r) * lda + k) * y;
      }
      store<T>(c + n * ldc + i, fold<T, L / 2>(sums) + bias[n]);
    }
}

// ---- layers --------------------------------------------------------------------------------------

constexpr int64_t TILE = 96;  // rows; a multiple of LANES and MAX_ROWS of every level

template <class T> int64_t padded(int64_t n) { return (n + LANES<T> - 1) / LANES<T> * LANES<T>; }
// Distance of rows: not a multiple of what a cache's sets repeat by.
template <class T> int64_t distance(int64_t n) {
  n = padded<T>(n);
  return n >= 128 && n % 32 == 0 ? n + 16 : n;
}
template <class T> T* allocate(int64_t n) {
  size_t bytes = (size_t(n > 0 ? n : 1) * sizeof(T) + 63) / 64 * 64;
  void* p = nullptr;
#if HAS_THREADS
  if (posix_memalign(&p, 64, bytes)) return nullptr;
#else
  p = malloc(bytes);
#endif
  if (p) memset(p, 0, bytes);
  return (T*)p;
}

template <class T> struct Weights {  // of a layer, laid out for products; padding is 0
  Layer layer;
  int64_t in, out;         // distances
  bool is_head;            // the last layer of the policy or of the values
  T *transposed, *plain;   // [inputs, out], [outputs, in]
  T* bias;                 // [out]
};

// What GELU's tanh form multiplies x by is σ(2u), u = √(2/π)·(x + 0.044715 x³): 2u, and its derivative.
template <class T> INLINE V<T> twice_u(V<T> x) { return x * (x * x * T(0.071354816272600244) + T(1.5957691216057307118)); }
template <class T> INLINE V<T> twice_u_slope(V<T> x) { return x * x * T(0.21406444881780073) + T(1.5957691216057307118); }

constexpr double SELU_SCALE = 1.0507009873554804934193349852946, SELU_ALPHA = 1.6732632423543772848170429916717;

// Whether the derivative depends on what the activation was applied to; else on its outputs alone.
constexpr bool keeps_input(int64_t kind) { return kind == SILU || kind == GELU || kind == TANH_GELU || kind == SQUARED_RELU; }

// Of n numbers, a multiple of LANES.
template <class T> void activate(int64_t kind, T* y, T* before, int64_t n) {
  int64_t i = 0;
  auto apply = [&](auto f) {
    for (; i < n; i += LANES<T>) store<T>(y + i, f(load<T>(y + i)));
  };
  if (keeps_input(kind)) memcpy(before, y, sizeof(T) * n);
  switch (kind) {
    case RELU: return apply([](V<T> x) { return x < T(0) ? V<T>{} : x; });
    case TANH:
      for (; i + TOGETHER * LANES<T> <= n; i += TOGETHER * LANES<T>) tanh_together<T>(y + i);
      return apply([](V<T> x) { return tanh<T>(x); });
    case SIGMOID: return apply([](V<T> x) { return sigmoid<T>(x); });
    case ELU: return apply([](V<T> x) { return x > T(0) ? x : expm1<T>(x); });
    case SILU: return apply([](V<T> x) { return x * sigmoid<T>(x); });
    case GELU: return apply([](V<T> x) { V<T> p, density; standard_normal<T>(x, p, density); return x * p; });
    case TANH_GELU: return apply([](V<T> x) { return x * sigmoid<T>(twice_u<T>(x)); });
    case SELU: return apply([](V<T> x) { return (x > T(0) ? x : T(SELU_ALPHA) * expm1<T>(x)) * T(SELU_SCALE); });
    case LEAKY_RELU: return apply([](V<T> x) { return x > T(0) ? x : x * T(0.01); });
    case SQUARED_RELU: return apply([](V<T> x) { return x < T(0) ? V<T>{} : x * x; });
    case HARD_TANH: return apply([](V<T> x) { return clamp<T>(x, -1, 1); });
    case RELU6: return apply([](V<T> x) { return clamp<T>(x, 0, 6); });
  }
}

// Gradients by the outputs become those by what the activation was applied to; adds their sums.
// With a HEAD of so many outputs above, they are its gradients, [HEAD, TILE], times its `weights`, and not yet in `g`.
template <class T, int HEAD>
void differentiate(int64_t kind, T* g, const T* y, const T* before, int64_t rows, int64_t n, int64_t ld, T* sums,
                   const T* gradients, const T* weights, int64_t ld_weights) {
  constexpr int64_t WIDTH = 4;  // vectors of a row at once: whole cache lines beside each other
  auto columns = [&](auto f, int64_t j, auto width) {
    V<T> totals[width], by_output[HEAD ? HEAD : 1][width];
    for (int64_t k = 0; k < width; k++) totals[k] = load<T>(sums + j + k * LANES<T>);
    for (int o = 0; o < HEAD; o++)
      for (int64_t k = 0; k < width; k++) by_output[o][k] = load<T>(weights + o * ld_weights + j + k * LANES<T>);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t k = 0; k < width; k++) {
        const int64_t i = r * ld + j + k * LANES<T>;
        V<T> x = HEAD ? gradients[r] * by_output[0][k] : load<T>(g + i);
        for (int o = 1; o < HEAD; o++) x += gradients[o * TILE + r] * by_output[o][k];
        x = f(x, i);
        store<T>(g + i, x);
        totals[k] += x;
      }
    for (int64_t k = 0; k < width; k++) store<T>(sums + j + k * LANES<T>, totals[k]);
  };
  auto apply = [&](auto f) {
    int64_t j = 0;
    for (; j + WIDTH * LANES<T> <= n; j += WIDTH * LANES<T>) columns(f, j, std::integral_constant<int64_t, WIDTH>{});
    for (; j < n; j += LANES<T>) columns(f, j, std::integral_constant<int64_t, 1>{});
  };
  switch (kind) {
    case RELU: return apply([&](V<T> g, int64_t i) { return load<T>(y + i) <= T(0) ? V<T>{} : g; });
    case TANH: return apply([&](V<T> g, int64_t i) { V<T> x = load<T>(y + i); return g * (T(1) - x * x); });
    case SIGMOID: return apply([&](V<T> g, int64_t i) { V<T> x = load<T>(y + i); return g * (x * (T(1) - x)); });
    case ELU: return apply([&](V<T> g, int64_t i) { V<T> x = load<T>(y + i); return x > T(0) ? g : g * (x + T(1)); });
    case SILU: return apply([&](V<T> g, int64_t i) {
      V<T> x = load<T>(before + i), s = sigmoid<T>(x);
      return g * (s * (T(1) + x * (T(1) - s)));
    });
    case GELU: return apply([&](V<T> g, int64_t i) {
      V<T> x = load<T>(before + i), p, density;
      standard_normal<T>(x, p, density);
      return g * (p + x * density);
    });
    case TANH_GELU: return apply([&](V<T> g, int64_t i) {
      V<T> x = load<T>(before + i), s = sigmoid<T>(twice_u<T>(x));
      return g * (s + x * s * (T(1) - s) * twice_u_slope<T>(x));
    });
    case SELU: return apply([&](V<T> g, int64_t i) {
      V<T> x = load<T>(y + i);
      return g * (x > T(0) ? all<T>(SELU_SCALE) : x + T(SELU_SCALE * SELU_ALPHA));
    });
    case LEAKY_RELU: return apply([&](V<T> g, int64_t i) { return load<T>(y + i) > T(0) ? g : g * T(0.01); });
    case SQUARED_RELU: return apply([&](V<T> g, int64_t i) {
      V<T> x = load<T>(before + i);
      return x <= T(0) ? V<T>{} : g * (x + x);
    });
    case HARD_TANH: return apply([&](V<T> g, int64_t i) { V<T> x = load<T>(y + i); return absolute<T>(x) >= T(1) ? V<T>{} : g; });
    case RELU6: return apply([&](V<T> g, int64_t i) { V<T> x = load<T>(y + i); return (x <= T(0)) | (x >= T(6)) ? V<T>{} : g; });
    default: return apply([](V<T> g, int64_t) { return g; });
  }
}

constexpr int64_t MAX_LAYERS = 32;

template <class T> struct Work {  // of a thread
  T* input;                                      // [TILE, in]: observations
  T *y[MAX_LAYERS], *before[MAX_LAYERS], *g[MAX_LAYERS];  // [TILE, out]: outputs and gradients; of heads [outputs, TILE]
  T *dw[MAX_LAYERS], *db[MAX_LAYERS];            // sums over the tiles of a thread
  T* joint;                                      // [TILE, in]: the values' part of the trunk's gradient
  T *columns, *gradients;                        // `y` and `g` of the policy's head
  T* rows;                                       // [TILE, out]: outputs of a head before they are transposed
  T* log_std;                                    // gradients of the deviations
  double results[RESULTS];
};

template <class T> struct Engine {
  Model model;
  int64_t layers, width, values, ld_observed, action_size, widest, threads;
  Weights<T> weights[MAX_LAYERS];
  Work<T>* work;
};

// First layer of the trunk, the policy and the values.
template <class T> INLINE int64_t first(const Engine<T>& e, int part) {
  return part == 0 ? 0 : part == 1 ? e.model.counts[0] : e.model.counts[0] + e.model.counts[1];
}

template <class T> void pack(Engine<T>& e) {
  for (int64_t l = 0; l < e.layers; l++) {
    Weights<T>& w = e.weights[l];
    const T* from = (const T*)w.layer.weight;
    const int64_t inputs = w.layer.inputs, outputs = w.layer.outputs;
    for (int64_t start = 0; start < outputs; start += 16)
      for (int64_t i = 0; i < inputs; i++)
        for (int64_t o = start; o < outputs && o < start + 16; o++) w.transposed[i * w.out + o] = from[o * inputs + i];
    for (int64_t o = 0; o < outputs; o++) memcpy(w.plain + o * w.in, from + o * inputs, sizeof(T) * inputs);
    if (w.layer.bias) memcpy(w.bias, w.layer.bias, sizeof(T) * outputs);
  }
}

// Whether the gradients of a layer's weights are [inputs, out], as `transposed`, since most of a vector of inputs would be
// padding; else [outputs, in].
template <class T> INLINE bool is_narrow(const Weights<T>& x) { return !x.is_head && x.layer.inputs < LANES<T> && x.layer.outputs >= LANES<T>; }

template <class T> INLINE int64_t gradient_size(const Weights<T>& x) {
  return is_narrow<T>(x) ? x.layer.inputs * x.out : x.layer.outputs * x.in;
}

// Where a layer's inputs are.
template <class T> INLINE Matrix<const T> input_of(const Engine<T>& e, const Work<T>& w, int64_t l) {
  const bool begins = l == first(e, 1) || l == first(e, 2);
  const int64_t below = begins ? e.model.counts[0] - 1 : l - 1;
  if (below >= 0) return {w.y[below], e.weights[below].out, 1};
  return {w.input + (l == first(e, 2) ? e.model.critic_column : 0), e.ld_observed, 1};
}

template <class T> void forward(const Engine<T>& e, Work<T>& w, int64_t rows, int64_t from, int64_t to) {
  for (int64_t l = from; l < to; l++) {
    const Weights<T>& x = e.weights[l];
    const Matrix<const T> input = input_of(e, w, l);
    if (CAN_SHUFFLE && x.is_head && 2 * x.layer.outputs <= LANES<T> && x.layer.inputs % LANES<T> == 0) {
      narrow_product<T>(rows, x.layer.outputs, x.layer.inputs, input.at, input.row, x.plain, x.in, w.y[l], TILE, x.bias);
      continue;
    }
    T* to = x.is_head ? w.rows : w.y[l];
    product<T>(rows, padded<T>(x.layer.outputs), x.layer.inputs, input, x.transposed, x.out, to, x.out, x.bias, false);
    if (x.is_head)
      for (int64_t j = 0; j < x.layer.outputs; j++)
        for (int64_t i = 0; i < rows; i++) w.y[l][j * TILE + i] = to[i * x.out + j];
    else activate<T>(x.layer.activation, to, w.before[l], rows * x.out);
  }
}

// From gradients by the outputs of the last layer; `below` receives those by the first one's inputs.
template <class T> void backward(const Engine<T>& e, Work<T>& w, int64_t rows, int64_t from, int64_t to, T* below) {
  // Heads whose products the layer below computes: of so few terms, they would be stores and loads mostly.
  auto is_small = [&](int64_t l) { return l > from && e.weights[l].is_head && e.weights[l].layer.outputs <= 2; };
  for (int64_t l = to - 1; l >= from; l--) {
    const Weights<T>& x = e.weights[l];
    if (x.is_head)
      for (int64_t j = 0; j < x.layer.outputs; j++) w.db[l][j] += total<T>(w.g[l] + j * TILE, rows);
    else {
      const Weights<T>& above = e.weights[l + 1];
      const bool is_below = l + 1 < to && is_small(l + 1);
      const auto derive = !is_below ? differentiate<T, 0> : above.layer.outputs == 1 ? differentiate<T, 1> : differentiate<T, 2>;
      derive(x.layer.activation, w.g[l], w.y[l], w.before[l], rows, padded<T>(x.layer.outputs), x.out, w.db[l], w.g[l + 1], above.plain, above.in);
    }
    const Matrix<const T> input = input_of(e, w, l), g = {w.g[l], x.is_head ? 1 : x.out, x.is_head ? TILE : 1};
    if (x.layer.weight_grad && is_narrow<T>(x))
      product<T>(x.layer.inputs, padded<T>(x.layer.outputs), rows, {input.at, 1, input.row}, w.g[l], x.out,
                 w.dw[l], x.out, nullptr, true);
    else if (x.layer.weight_grad)
      product<T>(x.layer.outputs, padded<T>(x.layer.inputs), rows, {g.at, g.column, g.row}, input.at, input.row,
                 w.dw[l], x.in, nullptr, true);
    T* to_below = l > from ? w.g[l - 1] : below;
    if (to_below && !is_small(l))
      product<T>(rows, padded<T>(x.layer.inputs), x.layer.outputs, g, x.plain, x.in, to_below, x.in, nullptr, false);
  }
}

// ---- observations ---------------------------------------------------------------------------------

int64_t width_of(const Leaf& leaf) {
  if (!leaf.options) return leaf.size;
  int64_t width = 0;
  for (int64_t d = 0; d < leaf.size; d++) width += leaf.options[d];
  return width;
}

// Kinds of numbers: one, and vectors. (An argument of a template would lose what they say of alignment.)
template <class T> struct One { typedef T N; };
template <class T> struct Few { typedef typename Types<T>::Short N; };
template <class T> struct Many { typedef typename Types<T>::V N; };

// Rows `index` of observations, into the networks' input; rows whose weight is 0 become 0.
template <class T> void gather(const Engine<T>& e, Work<T>& w, const void* const* obs, const int64_t* index, const T* weight, int64_t count) {
  for (int64_t l = 0; l < e.model.leaf_count; l++) {
    const Leaf& leaf = e.model.leaves[l];
    const int64_t n = leaf.size, width = width_of(leaf);
    auto each = [&](auto copy) {
      for (int64_t i = 0; i < count; i++) {
        T* to = w.input + i * e.ld_observed + leaf.column;
        if (weight && weight[i] == 0) memset(to, 0, sizeof(T) * width);
        else copy(to, index[i] * n);
      }
    };
    if (leaf.options) {
      each([&](T* to, int64_t at) {
        memset(to, 0, sizeof(T) * width);
        const int64_t* chosen = (const int64_t*)obs[l] + at;
        for (int64_t d = 0; d < n; to += leaf.options[d++])
          if (chosen[d] >= 0 && chosen[d] < leaf.options[d]) to[chosen[d]] = 1;
      });
      continue;
    }
    const T *x = (const T*)obs[l], *mean = (const T*)leaf.constants, *std = mean + n, *low = std + n, *high = low + n;
    auto numbers = [&](auto normalizes) {
      each([&](T* to, int64_t at) {
        int64_t j = 0;
        auto over = [&](auto kind) {
          typedef typename decltype(kind)::N N;
          for (constexpr int64_t size = sizeof(N) / sizeof(T); j + size <= n; j += size) {
            N y = *(const N*)(x + at + j);
            if (normalizes) {
              const N least = *(const N*)(low + j), most = *(const N*)(high + j);
              y = (y - *(const N*)(mean + j)) / *(const N*)(std + j);
              y = y < least ? least : y;
              y = most < y ? most : y;
            }
            *(N*)(to + j) = y;
          }
        };
        over(Many<T>{});
        over(Few<T>{});
        over(One<T>{});
      });
    };
    if (leaf.constants) numbers(std::true_type{});
    else numbers(std::false_type{});
  }
}

// ---- distributions, for all rows of a tile at once --------------------------------------------------
// Outputs and gradients are [width, TILE]: a vector holds rows.

constexpr double HALF_LOG_TWO_PI = 0.91893853320467274178;

// Gradients below it count as 0: products of them are subnormal; see distributions/_base.py.
template <class T> constexpr T smallest() {
  return std::numeric_limits<T>::min() / (std::numeric_limits<T>::epsilon() * std::numeric_limits<T>::epsilon());
}

template <class T> struct Rows {  // of a tile
  alignas(64) T old_logp[TILE], advantage[TILE], weight[TILE];
  alignas(64) T logp[TILE], lost[TILE], entropy[TILE], by_logp[TILE];
  int64_t index[TILE];
  bool all_count;  // whether no weight is 0
};

// Numbers of rows, [rows, of][…, 0]; 0 where the weight is.
template <class T> INLINE void take(const Rows<T>& rows, T* to, const T* from, int64_t n, int64_t of = 1) {
  if (rows.all_count)
    for (int64_t i = 0; i < n; i++) to[i] = from[rows.index[i] * of];
  else
    for (int64_t i = 0; i < n; i++) to[i] = rows.weight[i] != 0 ? from[rows.index[i] * of] : T(0);
}

// Outputs become log-probabilities, gradients the probabilities.
template <class T> void categorical(const Engine<T>& e, Work<T>& w, Rows<T>& rows, int64_t n, const int64_t* actions) {
  memset(rows.logp, 0, sizeof rows.logp);
  memset(rows.entropy, 0, sizeof rows.entropy);
  int64_t start = 0;
  for (int64_t d = 0; d < e.model.choices; d++) {
    const int64_t options = e.model.options[d];
    T *z = w.columns + start * TILE, *p = w.gradients + start * TILE;
    for (int64_t i = 0; i < n; i += LANES<T>) {
      V<T> most = load<T>(z + i), total{}, entropy{};
      for (int64_t j = 1; j < options; j++) {
        V<T> x = load<T>(z + j * TILE + i);
        most = x > most || x != x ? x : most;
      }
      for (int64_t j = 0; j < options; j++) {
        V<T> x = load<T>(z + j * TILE + i) - most, y = exponential<T>(x);
        store<T>(z + j * TILE + i, x);
        store<T>(p + j * TILE + i, y);
        total += y;
      }
      V<T> log_total = logarithm<T>(total);
      for (int64_t j = 0; j < options; j++) {
        V<T> x = load<T>(z + j * TILE + i) - log_total, y = load<T>(p + j * TILE + i) / total;
        y = y <= smallest<T>() ? V<T>{} : y;
        store<T>(z + j * TILE + i, x);
        store<T>(p + j * TILE + i, y);
        // The term of an option with log-probability −∞ is 0.
        entropy -= y * (x < std::numeric_limits<T>::lowest() ? all<T>(std::numeric_limits<T>::lowest()) : x);
      }
      store<T>(rows.entropy + i, load<T>(rows.entropy + i) + entropy);
    }
    for (int64_t i = 0; i < n; i++) {
      // A row that is left out may hold anything.
      const int64_t chosen = rows.weight[i] != 0 ? actions[rows.index[i] * e.model.choices + d] : 0;
      const bool exists = chosen >= 0 && chosen < options;
      rows.logp[i] += exists ? z[chosen * TILE + i] : std::numeric_limits<T>::quiet_NaN();
    }
    start += options;
  }
}

// (1[chosen] − p)·by_logp − p·(log p + H)·by_entropy, H of each choice.
template <class T> void categorical_gradients(const Engine<T>& e, Work<T>& w, Rows<T>& rows, int64_t n,
                                              const int64_t* actions, T by_entropy) {
  int64_t start = 0;
  for (int64_t d = 0; d < e.model.choices; d++) {
    const int64_t options = e.model.options[d];
    T *z = w.columns + start * TILE, *p = w.gradients + start * TILE;
    for (int64_t i = 0; i < n; i += LANES<T>) {
      V<T> by_logp = load<T>(rows.by_logp + i), share = load<T>(rows.weight + i) * by_entropy, entropy{};
      if (by_entropy != 0)
        for (int64_t j = 0; j < options; j++) {
          V<T> x = load<T>(z + j * TILE + i), y = load<T>(p + j * TILE + i);
          entropy -= y == T(0) ? V<T>{} : y * x;
        }
      for (int64_t j = 0; j < options; j++) {
        V<T> y = load<T>(p + j * TILE + i), factor = by_logp;
        if (by_entropy != 0) factor += (load<T>(z + j * TILE + i) + entropy) * share;
        factor = y == T(0) ? V<T>{} : factor;
        store<T>(p + j * TILE + i, -y * factor);
      }
    }
    for (int64_t i = 0; i < n; i++) {
      const int64_t chosen = rows.weight[i] != 0 ? actions[rows.index[i] * e.model.choices + d] : 0;
      if (chosen >= 0 && chosen < options) p[chosen * TILE + i] += rows.by_logp[i];
    }
    start += options;
  }
}

// Adds a term to a sum, and what the additions before it have lost (Kahan): log-densities of many actions are
// large numbers whose differences are looked at.
template <class N> void add(N& sum, N& lost, N term) {
  const N corrected = term - lost, after = sum + corrected, error = (after - sum) - corrected;
  lost = error - error == N{} ? error : N{};  // NaN or infinite: the sum is infinite
  sum = after;
}

// Logarithm of |da/du| where a number u is squashed: c + h·tanh(u) if `side` is 0, else, between one bound and infinity,
// bound + side·softplus(side·u); and its derivative by u.
template <class T> INLINE V<T> log_slope(V<T> u, T side, T log_half) {
  if (side == 0) return T(2) * (T(0.69314718055994530942) - u - softplus<T>(T(-2) * u)) + log_half;
  const V<T> x = u * side;
  return (x < T(0) ? x : V<T>{}) - softplus<T>(-absolute<T>(x));
}
template <class T> INLINE V<T> log_slope_derivative(V<T> u, T side) {
  return side == 0 ? T(-2) * tanh<T>(u) : side * sigmoid<T>(u * -side);
}

// A number of the policy, for the rows of a tile.
template <class T> struct Number {
  const T *mean, *log_std, *noise;  // noise: null, or of rows i·size
  T shared, side, log_half, low, high, half;
  int64_t size;
  INLINE V<T> log_std_at(int64_t i) const { return log_std ? load<T>(log_std + i) : all<T>(shared); }
  INLINE V<T> noise_at(int64_t i, int64_t rows) const {
    V<T> x{};
    for (int64_t k = 0; k < LANES<T> && i + k < rows; k++) x[k] = noise[(i + k) * size];
    return x;
  }
  // Distance of the mean from 1.1 times its range, which is scaled to ±1, and its derivative by the mean.
  INLINE V<T> beyond(V<T> mean, V<T>& slope) const {
    V<T> below = low - mean, above = mean - high, x = (below > above ? below : above) / half - T(0.1);
    slope = below > above ? all<T>(-1 / half) : all<T>(1 / half);
    return x < T(0) ? V<T>{} : x;
  }
};

template <class T> Number<T> number_of(const Engine<T>& e, const Work<T>& w, int64_t j, const T* noise) {
  const Model& m = e.model;
  auto at = [j](const void* x) { return x ? ((const T*)x)[j] : T(0); };
  const T* predicted = m.kind == PREDICTED_NORMAL ? w.columns + (e.action_size + j) * TILE : nullptr;
  return {w.columns + j * TILE, predicted, noise ? noise + j : nullptr, at(m.log_std), at(m.side), at(m.log_half),
          at(m.low), at(m.high), at(m.half), e.action_size};
}

// Gradients become x = (a − μ)/σ.
template <class T> void normal(const Engine<T>& e, Work<T>& w, Rows<T>& rows, int64_t count, int64_t n,
                               const T* actions, const T* noise, bool is_bounded) {
  const int64_t size = e.action_size;
  memset(rows.logp, 0, sizeof rows.logp);
  memset(rows.lost, 0, sizeof rows.lost);
  memset(rows.entropy, 0, sizeof rows.entropy);
  V<T> bounds{};
  for (int64_t j = 0; j < size; j++) {
    const Number<T> number = number_of(e, w, j, noise);
    T* scaled = w.gradients + j * TILE;
    for (int64_t i = 0; i < n; i++) scaled[i] = rows.weight[i] != 0 ? actions[rows.index[i] * size + j] : number.mean[i];
    for (int64_t i = 0; i < n; i += LANES<T>) {
      const V<T> log_std = number.log_std_at(i), mean = load<T>(number.mean + i), u = load<T>(scaled + i), weight = load<T>(rows.weight + i);
      V<T> x = (u - mean) * exponential<T>(-log_std), entropy = log_std + T(0.5 + HALF_LOG_TWO_PI), slope;
      x = weight != T(0) ? x : V<T>{};
      store<T>(scaled + i, x);
      V<T> logp = load<T>(rows.logp + i), lost = load<T>(rows.lost + i);
      add<V<T>>(logp, lost, T(-0.5) * x * x - (log_std + T(HALF_LOG_TWO_PI)));
      if (e.model.side) add<V<T>>(logp, lost, -log_slope<T>(u, number.side, number.log_half));
      if (noise) entropy += log_slope<T>(mean + exponential<T>(log_std) * number.noise_at(i, count), number.side, number.log_half);
      if (is_bounded) {
        const V<T> beyond = number.beyond(mean, slope);
        bounds += weight != T(0) ? weight * beyond * beyond : V<T>{};
      }
      store<T>(rows.logp + i, logp);
      store<T>(rows.lost + i, lost);
      store<T>(rows.entropy + i, load<T>(rows.entropy + i) + entropy);
    }
  }
  w.results[BOUNDS] += sum<T>(bounds);
}

// By the mean x/σ, by log σ x² − 1; and those of the entropy and of the bounds loss.
template <class T> void normal_gradients(const Engine<T>& e, Work<T>& w, Rows<T>& rows, int64_t count, int64_t n,
                                         const T* noise, T by_entropy, T by_bounds) {
  const int64_t size = e.action_size;
  for (int64_t j = 0; j < size; j++) {
    const Number<T> number = number_of(e, w, j, noise);
    T* scaled = w.gradients + j * TILE;
    V<T> total{};
    for (int64_t i = 0; i < n; i += LANES<T>) {
      const V<T> log_std = number.log_std_at(i), mean = load<T>(number.mean + i), weight = load<T>(rows.weight + i);
      const V<T> x = load<T>(scaled + i), by_logp = load<T>(rows.by_logp + i);
      // Of a row whose ratio is 0 they are 0, also where x² overflows.
      const V<T> by_scaled = x * by_logp;
      V<T> by_mean = by_scaled * exponential<T>(-log_std), by_log_std = by_scaled * x - by_logp + weight * by_entropy, slope;
      if (noise && by_entropy != 0) {
        const V<T> moved = exponential<T>(log_std) * number.noise_at(i, count);
        const V<T> by_sample = log_slope_derivative<T>(mean + moved, number.side) * weight * by_entropy;
        by_mean += by_sample;
        by_log_std += by_sample * moved;
      }
      if (by_bounds != 0) {
        const V<T> beyond = number.beyond(mean, slope);
        by_mean += weight != T(0) ? weight * by_bounds * T(2) * beyond * slope : V<T>{};
      }
      total += by_log_std;
      store<T>(scaled + i, by_mean);
      if (number.log_std) store<T>(w.gradients + (size + j) * TILE + i, by_log_std);
    }
    if (!number.log_std) w.log_std[j] += sum<T>(total);
  }
}

// ---- the loss ---------------------------------------------------------------------------------------

template <class T> struct Scale { T share, mean, divisor; };  // of a minibatch

// Divisor of rows with that deviation and largest magnitude: 1 if the deviation is the rounding error of equal numbers.
template <class T> T divisor_of(double count, double squares, T largest) {
  const T std = T(std::sqrt(squares / (count > 2 ? count - 1 : 1)));
  return std <= 8 * std::numeric_limits<T>::epsilon() * largest ? T(1) : std + T(1e-8);
}

template <class T> Scale<T> scale_of(const Batch& b) {
  auto row = [&](int64_t i) { return b.index ? b.index[i] : i; };
  int64_t count = b.mask ? 0 : b.rows;
  for (int64_t i = 0; b.mask && i < b.rows; i++) count += b.mask[row(i)];
  const int64_t least = count > 1 ? count : 1;
  if (!b.standardized) return {T(1) / T(least), 0, 1};
  double total = 0, squares = 0;
  T largest = 0;
  const T* x = (const T*)b.advantages;
  auto each = [&](auto f) {
    for (int64_t i = 0; i < b.rows; i++)
      if (!b.mask || b.mask[row(i)]) f(x[row(i)]);
  };
  each([&](T y) {
    total += y;
    const T size = std::fabs(y);
    largest = size > largest || size != size ? size : largest;
  });
  const double mean = total / least;
  each([&](T y) { squares += (y - mean) * (y - mean); });
  return {T(1) / T(least), T(mean), divisor_of<T>(double(count), squares, largest)};
}

// Whether an option is not masked. A masked one has the lowest finite logit: a row of −∞ would become NaN.
template <class T> INLINE bool is_allowed(const Engine<T>& e, const uint8_t* allowed, int64_t row, int64_t option) {
  return !allowed || allowed[row * e.width + option];
}

// Deviation that the losses of a value are in units of; the value of an output.
template <class T> INLINE T scale_at(const Engine<T>& e, int64_t k) { return e.model.value_scale ? ((const T*)e.model.value_scale)[k] : T(1); }
template <class T, class N> INLINE N value_at(const Engine<T>& e, N output, int64_t k) {
  return e.model.value_mean ? ((const T*)e.model.value_mean)[k] + output * scale_at<T>(e, k) : output;
}

// Terms of the loss of a tile, and the gradients by the outputs of both heads.
template <class T> void loss_of(const Engine<T>& e, Work<T>& w, Rows<T>& rows, int64_t start, int64_t count, const Batch& b, const Loss& loss) {
  const int64_t n = padded<T>(count), values = e.layers - 1;
  for (int64_t i = count; i < n; i++) rows.weight[i] = rows.old_logp[i] = rows.advantage[i] = 0;
  auto each_masked = [&](T* columns, T x) {
    for (int64_t j = 0; b.allowed && j < e.width; j++)
      for (int64_t i = 0; i < count; i++)
        if (!is_allowed(e, b.allowed, rows.index[i], j)) columns[j * TILE + i] = x;
  };
  each_masked(w.columns, std::numeric_limits<T>::lowest());
  for (int64_t j = 0; j < e.width; j++)
    for (int64_t i = count; i < n; i++) w.columns[j * TILE + i] = 0;
  // Padding has no index, and a weight of 0.
  const bool is_categorical = e.model.kind == CATEGORICAL;
  const T* noise = b.noise ? (const T*)b.noise + start * e.action_size : nullptr;
  if (is_categorical) categorical<T>(e, w, rows, n, (const int64_t*)b.actions);
  else normal<T>(e, w, rows, count, n, (const T*)b.actions, noise, loss.bounds_coeff != 0);

  const T low = T(1 - loss.clip), high = T(1 + loss.clip), clip = T(loss.clip), dual = T(loss.dual_clip);
  const bool has_dual = loss.dual_clip == loss.dual_clip;
  V<T> gains{}, divergence{}, beyond{}, entropies{};
  for (int64_t i = 0; i < n; i += LANES<T>) {
    V<T> weight = load<T>(rows.weight + i), advantage = load<T>(rows.advantage + i), logp = load<T>(rows.logp + i);
    auto included = weight != T(0);
    V<T> log_ratio = included ? logp - load<T>(rows.old_logp + i) : V<T>{};
    V<T> moved = expm1<T>(log_ratio), gain, by_logp;
    if (loss.is_ppo) {
      V<T> ratio = exponential<T>(log_ratio), plain = ratio * advantage, clipped = clamp<T>(ratio, low, high) * advantage;
      auto is_clipped = plain > clipped;
      gain = is_clipped ? clipped : plain;
      if (has_dual) {
        V<T> least = dual * advantage;
        auto is_bounded = (advantage < T(0)) & (gain < least);
        gain = is_bounded ? least : gain;
        is_clipped |= is_bounded;
      }
      by_logp = is_clipped ? ratio * T(0) : advantage * ratio;  // NaN where the ratio is infinite
    } else {
      gain = included ? logp * advantage : V<T>{};
      by_logp = advantage;
    }
    gains += weight * gain;
    divergence += weight * (moved - log_ratio);
    beyond += absolute<T>(moved) > clip ? weight : V<T>{};
    V<T> entropy = load<T>(rows.entropy + i);
    entropies += included ? weight * entropy : V<T>{};
    store<T>(rows.by_logp + i, included ? -by_logp * weight : V<T>{});
  }
  const T by_entropy = loss.uses_entropy ? T(-loss.entropy_coeff) : T(0);
  if (is_categorical) categorical_gradients<T>(e, w, rows, n, (const int64_t*)b.actions, by_entropy);
  else normal_gradients<T>(e, w, rows, count, n, noise, by_entropy, T(loss.bounds_coeff));
  each_masked(w.gradients, 0);

  const bool has_clip = loss.vf_clip == loss.vf_clip;
  const T vf_clip = T(loss.vf_clip), coeff = T(loss.vf_coeff);
  V<T> errors{};
  for (int64_t k = 0; k < e.values; k++) {
    alignas(64) T target[TILE], before[TILE];
    take(rows, target, (const T*)b.returns + k, count, e.values);
    if (has_clip) take(rows, before, (const T*)b.values + k, count, e.values);
    for (int64_t i = count; i < n; i++) target[i] = before[i] = 0;
    const T *outputs = w.y[values] + k * TILE, unit = scale_at<T>(e, k);
    for (int64_t i = 0; i < n; i += LANES<T>) {
      const V<T> weight = load<T>(rows.weight + i), value = weight != T(0) ? value_at<T>(e, load<T>(outputs + i), k) : V<T>{};
      auto in_units = [&](V<T> x) { return e.model.value_scale ? x / unit : x; };
      const V<T> estimate = in_units(value), difference = estimate - in_units(load<T>(target + i));
      V<T> size = absolute<T>(difference), derivative = loss.is_mse ? difference : clamp<T>(difference, -1, 1);
      if (has_clip) {
        const V<T> change = estimate - in_units(load<T>(before + i));
        const V<T> clipped = absolute<T>(difference - (change - clamp<T>(change, -vf_clip, vf_clip)));
        derivative = clipped > size ? V<T>{} : derivative;
        size = clipped > size || clipped != clipped ? clipped : size;
      }
      const V<T> near = loss.is_mse ? size : size > T(1) ? all<T>(1) : size;
      errors += weight * ((size - T(0.5) * near) * near);
      store<T>(w.g[values] + k * TILE + i, derivative * weight * coeff);
    }
  }
  w.results[POLICY] += sum<T>(gains);
  w.results[KL] += sum<T>(divergence);
  w.results[CLIPPED] += sum<T>(beyond);
  w.results[ENTROPY] += sum<T>(entropies);
  w.results[VALUE] += sum<T>(errors);
}

// ---- a minibatch ----------------------------------------------------------------------------------------

template <class T> void tile(const Engine<T>& e, Work<T>& w, const Batch& b, const Loss& loss, const Scale<T>& scale, int64_t start) {
  Rows<T> rows;
  const int64_t left = b.rows - start, count = left < TILE ? left : TILE;
  for (int64_t i = 0; i < count; i++) rows.index[i] = b.index ? b.index[start + i] : start + i;
  for (int64_t i = count; i < TILE; i++) rows.index[i] = 0;
  rows.all_count = !b.weight && !b.mask;
  for (int64_t i = 0; i < count; i++)
    rows.weight[i] = b.weight ? ((const T*)b.weight)[rows.index[i]] : !b.mask || b.mask[rows.index[i]] ? scale.share : T(0);
  take(rows, rows.old_logp, (const T*)b.logp, count);
  take(rows, rows.advantage, (const T*)b.advantages, count);
  for (int64_t i = 0; i < count; i++) rows.advantage[i] = rows.weight[i] != 0 ? (rows.advantage[i] - scale.mean) / scale.divisor : T(0);
  gather<T>(e, w, b.obs, rows.index, rows.all_count ? nullptr : rows.weight, count);
  forward<T>(e, w, count, 0, e.layers);
  loss_of<T>(e, w, rows, start, count, b, loss);
  const int64_t policy = first(e, 1), values = first(e, 2), trunk = e.model.counts[0];
  T* below = trunk ? w.g[trunk - 1] : nullptr;
  backward<T>(e, w, count, policy, values, below);
  backward<T>(e, w, count, values, e.layers, below ? w.joint : nullptr);
  if (!below) return;
  const int64_t numbers = count * e.weights[trunk - 1].out;
  for (int64_t i = 0; i < numbers; i++) below[i] += w.joint[i];
  backward<T>(e, w, count, 0, trunk, nullptr);
}

template <class T> void clear(const Engine<T>& e, Work<T>& w) {
  for (int64_t l = 0; l < e.layers; l++) {
    memset(w.dw[l], 0, sizeof(T) * gradient_size<T>(e.weights[l]));
    memset(w.db[l], 0, sizeof(T) * e.weights[l].out);
  }
  memset(w.log_std, 0, sizeof(T) * (e.action_size + 1));
  memset(w.results, 0, sizeof w.results);
}

template <class T> void add_gradients(const Engine<T>& e, const Work<T>& w) {
  for (int64_t l = 0; l < e.layers; l++) {
    const Weights<T>& x = e.weights[l];
    const int64_t row = is_narrow<T>(x) ? 1 : x.in, column = is_narrow<T>(x) ? x.out : 1;
    if (T* to = (T*)x.layer.weight_grad)
      for (int64_t o = 0; o < x.layer.outputs; o++)
        for (int64_t i = 0; i < x.layer.inputs; i++) to[o * x.layer.inputs + i] += w.dw[l][o * row + i * column];
    if (T* to = (T*)x.layer.bias_grad)
      for (int64_t o = 0; o < x.layer.outputs; o++) to[o] += w.db[l][o];
  }
  if (T* to = (T*)e.model.log_std_grad)
    for (int64_t j = 0; j < e.action_size; j++) to[j] += w.log_std[j];
}

constexpr int64_t MAX_THREADS = 64;

// f(t) for each t < threads, each in a thread, or one after the other where none can be started.
template <class F> void in_threads(int64_t threads, const F& f) {
  struct Share { const F* f; int64_t thread; };
  auto run = [](void* given) -> void* {
    const Share& s = *(const Share*)given;
    (*s.f)(s.thread);
    return nullptr;
  };
  Share shares[MAX_THREADS];
  for (int64_t t = 0; t < threads; t++) shares[t] = {&f, t};
#if HAS_THREADS
  pthread_t started[MAX_THREADS];
  bool is_started[MAX_THREADS] = {};
  for (int64_t t = 1; t < threads; t++) is_started[t] = pthread_create(&started[t], nullptr, run, &shares[t]) == 0;
  run(&shares[0]);
  for (int64_t t = 1; t < threads; t++) {
    if (is_started[t]) pthread_join(started[t], nullptr);
    else run(&shares[t]);
  }
#else
  for (int64_t t = 0; t < threads; t++) run(&shares[t]);
#endif
}

// Threads for so many multiplications: each has to save some 20 µs for being started.
int64_t threads_for(double work, int64_t threads, int64_t most) {
  constexpr double WORK_OF_A_THREAD = 4e6;
  if (threads > most) threads = most;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  if (threads > work / WORK_OF_A_THREAD) threads = int64_t(work / WORK_OF_A_THREAD);
  return threads < 1 ? 1 : threads;
}

// Threads for so many rows and products of matrices a layer.
template <class T> int64_t threads_of(const Engine<T>& e, int64_t rows, int64_t products) {
  double work = 0;
  for (int64_t l = 0; l < e.layers; l++) work += double(products) * rows * e.weights[l].layer.inputs * e.weights[l].layer.outputs;
  return threads_for(work, e.threads, (rows + TILE - 1) / TILE);
}

// Tiles go to threads in fixed shares, whose sums are added in order: the same numbers every time.
template <class T> void gradients(Engine<T>& e, const Batch& b, const Loss& loss, double* results) {
  pack<T>(e);
  const Scale<T> scale = b.weight ? Scale<T>{0, 0, 1} : scale_of<T>(b);
  const int64_t tiles = (b.rows + TILE - 1) / TILE, threads = threads_of(e, b.rows, 3);
  in_threads(threads, [&](int64_t t) {
    Work<T>& w = e.work[t];
    clear<T>(e, w);
    for (int64_t at = tiles * t / threads; at < tiles * (t + 1) / threads; at++) tile<T>(e, w, b, loss, scale, at * TILE);
  });
  for (int64_t t = 0; t < threads; t++) {
    add_gradients<T>(e, e.work[t]);
    for (int i = 0; i < NORM; i++) results[i] += e.work[t].results[i];
  }
}

// ---- the optimizer ----------------------------------------------------------------------------------------

template <class T> T norm_of(const Optimizer& o) {
  double total = 0;
  for (int64_t i = 0; i < o.count; i++) {
    const T* g = (const T*)o.parameters[i].grad;
    V<T> sums{};
    int64_t j = 0;
    for (; j + LANES<T> <= o.parameters[i].size; j += LANES<T>) sums += load<T>(g + j) * load<T>(g + j);
    T rest = sum<T>(sums);
    for (; j < o.parameters[i].size; j++) rest += g[j] * g[j];
    total += rest;
  }
  return T(std::sqrt(T(total)));
}

template <class T> void adam(const Parameter& p, T scale) {
  *p.step += 1;
  const double first = 1 - std::pow(p.beta1, *p.step), second = std::sqrt(1 - std::pow(p.beta2, *p.step));
  const T size = T(p.lr / first), root = T(second), eps = T(p.eps), sign = p.maximizes ? -scale : scale;
  const T keep1 = T(p.beta1), add1 = T(1 - p.beta1), keep2 = T(p.beta2), add2 = T(1 - p.beta2);
  const T decay = T(p.is_decoupled ? 0 : p.decay), shrink = T(p.is_decoupled ? 1 - p.lr * p.decay : 1);
  T *value = (T*)p.value, *mean = (T*)p.mean, *square = (T*)p.square;
  const T* grad = (const T*)p.grad;
  for (int64_t i = 0; i < p.size; i++) {
    T g = grad[i] * sign;
    if (decay != 0) g += value[i] * decay;
    const T m = mean[i] = keep1 * mean[i] + add1 * g, v = square[i] = keep2 * square[i] + add2 * g * g;
    value[i] = value[i] * shrink - size * m / (std::sqrt(v) / root + eps);
  }
}

template <class T> Outcome step(const Optimizer& o, double* results) {
  const T norm = norm_of<T>(o);
  const bool is_finite = norm - norm == 0;
  results[NORM] = is_finite ? double(norm) : 0.0;
  if (is_finite) {
    T scale = 1;
    if (o.max_norm == o.max_norm) {
      scale = T(o.max_norm) * (T(1) / (norm + T(1e-6)));
      scale = scale > 1 ? T(1) : scale;
    }
    for (int64_t i = 0; i < o.count; i++) adam<T>(o.parameters[i], scale);
  }
  return is_finite ? STEPPED : SKIPPED;
}

template <class T> int64_t learn(Engine<T>& e, const Batch& b, const Loss& loss, const Optimizer* o, double* results) {
  memset(results, 0, sizeof(double) * RESULTS);
  gradients<T>(e, b, loss, results);
  if (!o) return STEPPED;
  Outcome outcome = REFUSED;  // NaN exceeds the target, too
  if (o->target_kl != o->target_kl || T(results[KL]) <= o->target_kl) outcome = step<T>(*o, results);
  for (int64_t i = 0; i < o->count; i++) memset(o->parameters[i].grad, 0, sizeof(T) * o->parameters[i].size);
  return outcome;
}

// ---- acting -------------------------------------------------------------------------------------------------

// Outputs [rows, width] and values [rows, K] of observations from row `at` on; either may be null. Threads take equal
// shares of the rows.
template <class T> void respond(Engine<T>& e, int64_t rows, const void* const* obs, int64_t at, T* outputs, T* values) {
  const int64_t policy = first(e, 1), critic = first(e, 2), threads = threads_of(e, rows, 1);
  auto tile = [&](Work<T>& w, int64_t start, int64_t count) {
    int64_t index[TILE];
    for (int64_t i = 0; i < count; i++) index[i] = at + start + i;
    gather<T>(e, w, obs, index, nullptr, count);
    forward<T>(e, w, count, 0, policy);
    auto write = [&](T* to, int64_t from, int64_t end, int64_t width) {
      if (!to) return;
      forward<T>(e, w, count, from, end);
      for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++) to[(start + i) * width + j] = w.y[end - 1][j * TILE + i];
    };
    write(outputs, policy, critic, e.width);
    write(values, critic, e.layers, e.values);
    if (values)
      for (int64_t i = start; i < start + count; i++)
        for (int64_t k = 0; k < e.values; k++) values[i * e.values + k] = value_at<T>(e, values[i * e.values + k], k);
  };
  in_threads(threads, [&](int64_t t) {
    const int64_t end = rows * (t + 1) / threads;
    for (int64_t start = rows * t / threads; start < end; start += TILE) tile(e.work[t], start, end - start < TILE ? end - start : TILE);
  });
}

// Numbers from Exp(1), as PyTorch computes them: E = −log(1 − u), u uniform.
template <class T> INLINE V<T> exponential_of(const double* u) {
  alignas(64) T found[LANES<T>];
  for (int i = 0; i < LANES<T>; i += LANES<double>) {
    const V<double> e = -logarithm<double>(1.0 - load<double>(u + i));
    for (int k = 0; k < LANES<double>; k++) found[i + k] = T(e[k]);
  }
  return load<T>(found);
}

// argmax p/E of each choice, E from Exp(1) with the uniform `noise`, [rows, choices, widest choice]; the first of equals.
// A vector holds rows.
template <class T> void choose(const Engine<T>& e, int64_t rows, T* outputs, const uint8_t* allowed, const double* noise, int64_t* actions, T* logp) {
  const int64_t choices = e.model.choices;
  for (int64_t r = 0; allowed && r < rows; r++)
    for (int64_t j = 0; j < e.width; j++)
      if (!is_allowed(e, allowed, r, j)) outputs[r * e.width + j] = std::numeric_limits<T>::lowest();
  for (int64_t r = 0; r < rows; r += LANES<T>) {
    const int64_t count = rows - r < LANES<T> ? rows - r : LANES<T>;
    V<T> total_logp{};
    int64_t start = 0;
    for (int64_t d = 0; d < choices; d++) {
      const int64_t options = e.model.options[d];
      auto logits = [&](int64_t j) {
        V<T> z{};
        for (int64_t k = 0; k < count; k++) z[k] = outputs[(r + k) * e.width + start + j];
        return z;
      };
      V<T> most = logits(0), total{}, best = all<T>(-1), chosen{}, log_p{};
      for (int64_t j = 1; j < options; j++) {
        const V<T> z = logits(j);
        most = z > most || z != z ? z : most;
      }
      for (int64_t j = 0; j < options; j++) {
        const V<T> x = logits(j) - most, p = exponential<T>(x);
        V<T> raced = p;
        if (noise) {
          alignas(64) double u[LANES<T>] = {};
          for (int64_t k = 0; k < count; k++) u[k] = noise[((r + k) * choices + d) * e.widest + j];
          raced = p / exponential_of<T>(u);
        }
        const auto leads = raced > best;
        best = leads ? raced : best;
        chosen = leads ? all<T>(T(j)) : chosen;
        log_p = leads || j == 0 ? x : log_p;
        total += p;
      }
      total_logp += log_p - logarithm<T>(total);
      for (int64_t k = 0; k < count; k++) actions[(r + k) * choices + d] = int64_t(chosen[k]);
      start += options;
    }
    for (int64_t k = 0; k < count; k++) logp[r + k] = total_logp[k];
  }
}

// u = μ + σ·noise, and the log-density of the action that u is squashed to, or is.
template <class T> void draw(const Engine<T>& e, int64_t rows, const T* outputs, const T* noise, T* actions, T* logp) {
  const int64_t size = e.action_size, width = e.width;
  const bool predicted = e.model.kind == PREDICTED_NORMAL;
  for (int64_t r = 0; r < rows; r++) {
    T total = 0, lost = 0;
    for (int64_t j = 0; j < size; j++) {
      const T mean = outputs[r * width + j];
      const T log_std = predicted ? outputs[r * width + size + j] : ((const T*)e.model.log_std)[j];
      const T std = std::exp(log_std), action = noise ? mean + std * noise[r * size + j] : mean;
      const T scaled = (action - mean) / std;
      actions[r * size + j] = action;
      add<T>(total, lost, T(-0.5) * scaled * scaled - (log_std + T(HALF_LOG_TWO_PI)));
      if (e.model.side)
        add<T>(total, lost, -log_slope<T>(all<T>(action), ((const T*)e.model.side)[j], ((const T*)e.model.log_half)[j])[0]);
    }
    logp[r] = total;
  }
}

template <class T> void act(const Acting& a, int64_t t, void* given) {
  Engine<T>& e = *(Engine<T>*)a.engine;
  const int64_t first = t * a.rows;
  T *outputs = (T*)a.outputs, *logp = (T*)a.logp + first;
  respond<T>(e, a.rows, a.obs, a.is_whole ? first : 0, outputs, (T*)a.values + first * e.values);
  auto copied = [&](auto* actions, int64_t size) {
    memcpy(given, actions, sizeof(*actions) * a.rows * size);
  };
  if (e.model.kind == CATEGORICAL) {
    int64_t* actions = (int64_t*)a.actions + first * e.model.choices;
    choose<T>(e, a.rows, outputs, a.allowed, (const double*)a.noise, actions, logp);
    copied(actions, e.model.choices);
  } else {
    T* actions = (T*)a.actions + first * e.action_size;
    draw<T>(e, a.rows, outputs, (const T*)a.noise, actions, logp);
    copied(actions, e.action_size);
  }
}

// ---- recurrent cells ----------------------------------------------------------------------------------------

// f(j, vector) for vectors from number j on, the last of which may have fewer numbers than lanes.
template <class T> struct Whole {
  INLINE V<T> get(const T* p) const { return load<T>(p); }
  INLINE void put(T* p, V<T> x) const { store<T>(p, x); }
};
template <class T> struct Part {
  int64_t count;
  INLINE V<T> get(const T* p) const {
    V<T> x{};
    for (int64_t i = 0; i < count; i++) x[i] = p[i];
    return x;
  }
  INLINE void put(T* p, V<T> x) const {
    for (int64_t i = 0; i < count; i++) p[i] = x[i];
  }
};
template <class T, class F> INLINE void in_vectors(int64_t size, F f) {
  int64_t j = 0;
  for (; j + LANES<T> <= size; j += LANES<T>) f(j, Whole<T>{});
  if (j < size) f(j, Part<T>{size - j});
}

template <class T> INLINE T* at(void* p, int64_t i) { return p ? (T*)p + i : nullptr; }
template <class T> INLINE const T* at(const void* p, int64_t i) { return p ? (const T*)p + i : nullptr; }

INLINE bool resets_after(const Cells& c, int64_t step, int64_t row) {
  return c.first && step + 1 < c.steps && c.first[(step + 1) * c.rows + row];
}

// A step of one row: activations in place, and the states after it.
template <class T> void cell_forward(const Cells& c, int64_t step, int64_t row) {
  const int64_t n = c.size, r = step * c.rows + row, next = r + c.rows;
  const bool resets = resets_after(c, step, row);
  T *hidden = at<T>(c.hidden, next * n), *kept = at<T>(c.kept, r * n);
  T* latents = at<T>(c.latents, (row * c.steps + step) * n);
  if (c.is_gru) {
    T* g = at<T>(c.gates, r * 3 * n);
    const T *inner = at<T>(c.inner, row * 3 * n), *before = at<T>(c.hidden, r * n);
    in_vectors<T>(n, [&](int64_t j, auto v)  {
      const V<T> reset = sigmoid<T>(v.get(g + j) + v.get(inner + j));
      const V<T> update = sigmoid<T>(v.get(g + n + j) + v.get(inner + n + j));
      const V<T> from_state = v.get(inner + 2 * n + j);
      const V<T> candidate = tanh<T>(v.get(g + 2 * n + j) + reset * from_state);
      const V<T> after = (T(1) - update) * candidate + update * v.get(before + j);
      if (kept) {
        v.put(g + j, reset), v.put(g + n + j, update), v.put(g + 2 * n + j, candidate);
        v.put(kept + j, from_state);
      }
      if (latents) v.put(latents + j, after);
      v.put(hidden + j, resets ? V<T>{} : after);
    });
    return;
  }
  T *g = at<T>(c.gates, r * 4 * n), *cell = at<T>(c.cell, next * n);
  const T* before = at<T>(c.cell, r * n);
  in_vectors<T>(n, [&](int64_t j, auto v)  {
    const V<T> in = sigmoid<T>(v.get(g + j)), forget = sigmoid<T>(v.get(g + n + j));
    const V<T> candidate = tanh<T>(v.get(g + 2 * n + j)), out = sigmoid<T>(v.get(g + 3 * n + j));
    const V<T> after = forget * v.get(before + j) + in * candidate, bounded = tanh<T>(after);
    const V<T> latent = out * bounded;
    if (kept) {
      v.put(g + j, in), v.put(g + n + j, forget), v.put(g + 2 * n + j, candidate), v.put(g + 3 * n + j, out);
      v.put(kept + j, bounded);
    }
    if (latents) v.put(latents + j, latent);
    v.put(cell + j, resets ? V<T>{} : after);
    v.put(hidden + j, resets ? V<T>{} : latent);
  });
}

// Derivatives of one row's sums and states before a step, from those after it.
template <class T> void cell_backward(const Cells& c, int64_t step, int64_t row) {
  const int64_t n = c.size, r = step * c.rows + row;
  const bool resets = resets_after(c, step, row);
  T* d_hidden = at<T>(c.d_hidden, row * n);
  const T *kept = at<T>(c.kept, r * n), *d_latents = at<T>(c.d_latents, (row * c.steps + step) * n);
  auto d_after = [&](int64_t j, auto v)  {
    const V<T> d = d_latents ? v.get(d_latents + j) : V<T>{};
    return resets ? d : d + v.get(d_hidden + j);
  };
  if (c.is_gru) {
    const T *g = at<T>(c.gates, r * 3 * n), *before = at<T>(c.hidden, r * n);
    T *d_gates = at<T>(c.d_gates, r * 3 * n), *d_inner = at<T>(c.d_inner, r * 3 * n);
    in_vectors<T>(n, [&](int64_t j, auto v)  {
      const V<T> reset = v.get(g + j), update = v.get(g + n + j), candidate = v.get(g + 2 * n + j);
      const V<T> d = d_after(j, v);
      const V<T> d_candidate = d * (T(1) - update) * (T(1) - candidate * candidate);
      const V<T> d_update = d * (v.get(before + j) - candidate) * update * (T(1) - update);
      const V<T> d_reset = d_candidate * v.get(kept + j) * reset * (T(1) - reset);
      v.put(d_gates + j, d_reset), v.put(d_gates + n + j, d_update), v.put(d_gates + 2 * n + j, d_candidate);
      v.put(d_inner + j, d_reset), v.put(d_inner + n + j, d_update), v.put(d_inner + 2 * n + j, d_candidate * reset);
      v.put(d_hidden + j, d * update);
    });
    return;
  }
  const T *g = at<T>(c.gates, r * 4 * n), *before = at<T>(c.cell, r * n);
  T *d_gates = at<T>(c.d_gates, r * 4 * n), *d_cell = at<T>(c.d_cell, row * n);
  in_vectors<T>(n, [&](int64_t j, auto v)  {
    const V<T> in = v.get(g + j), forget = v.get(g + n + j), candidate = v.get(g + 2 * n + j), out = v.get(g + 3 * n + j);
    const V<T> bounded = v.get(kept + j), d = d_after(j, v);
    const V<T> through = d * out * (T(1) - bounded * bounded), d_after_cell = resets ? through : through + v.get(d_cell + j);
    v.put(d_gates + j, d_after_cell * candidate * in * (T(1) - in));
    v.put(d_gates + n + j, d_after_cell * v.get(before + j) * forget * (T(1) - forget));
    v.put(d_gates + 2 * n + j, d_after_cell * in * (T(1) - candidate * candidate));
    v.put(d_gates + 3 * n + j, d * bounded * out * (T(1) - out));
    v.put(d_cell + j, d_after_cell * forget);
  });
}

template <class F> void each_row(const Cells& c, const F& f) {
  constexpr double WORK_OF_A_NUMBER = 60;  // multiplications
  const int64_t threads = threads_for(WORK_OF_A_NUMBER * c.rows * c.size, c.threads, c.rows);
  in_threads(threads, [&](int64_t t) {
    for (int64_t row = c.rows * t / threads; row < c.rows * (t + 1) / threads; row++) f(row);
  });
}

// ---- engines ---------------------------------------------------------------------------------------------------

template <class T> void destroy(Engine<T>* e) {
  for (int64_t t = 0; e->work && t < e->threads; t++) {
    Work<T>& w = e->work[t];
    for (int64_t l = 0; l < e->layers; l++)
      for (T* p : {w.y[l], w.before[l], w.g[l], w.dw[l], w.db[l]}) free(p);
    for (T* p : {w.input, w.joint, w.rows, w.log_std}) free(p);
  }
  for (int64_t l = 0; l < e->layers; l++)
    for (T* p : {e->weights[l].transposed, e->weights[l].plain, e->weights[l].bias}) free(p);
  free(e->work);
  free(e);
}

template <class T> Engine<T>* create(const Model& m) {
  Engine<T>* e = allocate<Engine<T>>(1);
  if (!e) return nullptr;
  bool complete = true;
  auto take = [&](auto*& to, int64_t n) {
    to = allocate<std::remove_reference_t<decltype(*to)>>(n);
    complete &= to != nullptr;
  };
  e->model = m;
  e->layers = m.counts[0] + m.counts[1] + m.counts[2];
  e->threads = m.threads < 1 ? 1 : m.threads > MAX_THREADS ? MAX_THREADS : m.threads;
  for (int64_t l = 0; l < e->layers; l++) {
    Weights<T>& w = e->weights[l];
    w.layer = m.layers[l];
    w.in = distance<T>(w.layer.inputs);
    w.out = distance<T>(w.layer.outputs);
    w.is_head = l == first(*e, 2) - 1 || l == e->layers - 1;
    take(w.transposed, w.layer.inputs * w.out);
    take(w.plain, w.layer.outputs * w.in);
    take(w.bias, w.out);
  }
  int64_t observed = 0;
  for (int64_t l = 0; l < m.leaf_count; l++) {
    const int64_t end = m.leaves[l].column + width_of(m.leaves[l]);
    observed = end > observed ? end : observed;
  }
  e->ld_observed = distance<T>(observed);
  e->width = m.layers[first(*e, 2) - 1].outputs;
  e->values = m.layers[e->layers - 1].outputs;
  e->action_size = m.kind == NORMAL ? e->width : m.kind == PREDICTED_NORMAL ? e->width / 2 : 0;
  for (int64_t d = 0; d < m.choices; d++) e->widest = m.options[d] > e->widest ? m.options[d] : e->widest;
  take(e->work, e->threads);
  for (int64_t t = 0; e->work && t < e->threads; t++) {
    Work<T>& w = e->work[t];
    take(w.input, TILE * e->ld_observed);
    const int64_t policy = first(*e, 2) - 1, values = e->layers - 1;
    take(w.rows, TILE * (e->weights[policy].out > e->weights[values].out ? e->weights[policy].out : e->weights[values].out));
    take(w.log_std, e->action_size + 1);
    const int64_t trunk = m.counts[0];
    take(w.joint, trunk ? TILE * e->weights[trunk - 1].out : 1);
    for (int64_t l = 0; l < e->layers; l++) {
      const Weights<T>& x = e->weights[l];
      take(w.y[l], TILE * x.out);
      take(w.g[l], TILE * x.out);
      take(w.before[l], keeps_input(x.layer.activation) ? TILE * x.out : 1);
      take(w.dw[l], gradient_size<T>(x));
      take(w.db[l], x.out);
    }
    w.columns = w.y[policy];
    w.gradients = w.g[policy];
  }
  if (complete) return e;
  destroy<T>(e);
  return nullptr;
}

// ---- rows of a rollout ---------------------------------------------------------------------------
// Time-major, [steps, envs, streams]. Flags are bytes; null: all rows count, or none is passed. What
// flags leave out may be NaN, so it is selected and never multiplied.

// f of one stream, which compilers make vectors of, or of more.
template <class F> INLINE void by_streams(int64_t streams, F f) {
  streams == 1 ? f(std::integral_constant<int64_t, 1>{}) : f(streams);
}

// As advantages.bootstrap_values.
template <class T>
void bootstrap(int64_t rows, int64_t of, const T* next, const uint8_t* terminated, const uint8_t* final, const T* final_values, T* out) {
  by_streams(of, [=](auto streams) {
    for (int64_t k = 0; k < streams; k++)
#pragma GCC ivdep
      for (int64_t row = 0; row < rows; row++) {
        const int64_t i = row * streams + k;
        const T x = next[i], y = final_values[i], at_end = final[row] ? y : x;
        out[i] = terminated[row] ? T(0) : at_end;
      }
  });
}

// Â_t = δ_t + γλ·Â_{t+1}, as advantages.gae.
template <class T>
void advantages(int64_t steps, int64_t envs, int64_t of, const T* rewards, const T* values, const T* next, const uint8_t* done, const uint8_t* known, const uint8_t* passed, const double* gamma, double lambda, T* out) {
  const bool all_known = !known, none_passed = !passed;
  const uint8_t *of_known = known ? known : done, *of_passed = passed ? passed : done;  // there is something to read
  by_streams(of, [=](auto streams) {
    const int64_t columns = envs * streams;
    for (int64_t t = steps; t-- > 0;)
      for (int64_t k = 0; k < streams; k++) {
        const T discount = T(gamma[k]), decay = T(gamma[k] * lambda);
        const bool is_last = t + 1 == steps;
        const T* after = is_last ? rewards : out + columns;
#pragma GCC ivdep
        for (int64_t i = t * columns + k; i < (t + 1) * columns; i += streams) {
          const T next_one = after[i], change = rewards[i] + discount * next[i] - values[i];
          const T later = (done[i] != 0) | is_last ? T(0) : next_one;
          const T delta = (of_known[i] != 0) | all_known ? change : T(0), traced = delta + decay * later;
          out[i] = (of_passed[i] == 0) | none_passed ? traced : later;
        }
      }
  });
}

// R_t = r_t + γ·R_{t−1}, as advantages.reversed_discounted_returns.
template <class T>
void discount(int64_t steps, int64_t envs, const T* rewards, const T* initial, const uint8_t* done, double gamma, T* out) {
  for (int64_t i = 0; i < steps * envs; i++) {
    const int64_t before = i - envs;
    out[i] = rewards[i] + T(gamma) * (before < 0 ? initial[i] : done[before] ? T(0) : out[before]);
  }
}

constexpr auto lesser = [](auto x, auto y) { return y < x || y != y ? y : x; };  // NaN stays
constexpr auto greater = [](auto x, auto y) { return y > x || y != y ? y : x; };

constexpr double INFINITE = std::numeric_limits<double>::infinity();

struct Measured {
  double count, mean, squares, least, most;  // squared distances from the mean; infinite extremes if there is no row
  double deviation() const { return std::sqrt(squares / (count > 2 ? count - 1 : 1)); }
  double largest() const { return count ? greater(-least, most) : 0; }
};

// As many numbers as a vector has of float64.
typedef float Floats __attribute__((vector_size(BYTES / 2), aligned(4), may_alias));
INLINE V<double> loaded(const double* x) { return *(const V<double>*)x; }
INLINE V<double> loaded(const float* x) { return __builtin_convertvector(*(const Floats*)x, V<double>); }
INLINE Types<double>::I loaded(const uint8_t* flags) {  // −1 where one is set
  int64_t word = 0;
  memcpy(&word, flags, LANES<double>);
  Types<double>::I bytes;
  for (int k = 0; k < LANES<double>; k++) bytes[k] = int64_t(uint64_t(255) << 8 * k);
  return ((Types<double>::I{} + word) & bytes) != 0;
}

// Of rows with `mask`, in sums that do not wait for each other.
template <class T> Measured measured(int64_t n, const T* x, const uint8_t* mask) {
  constexpr int COUNT = LANES<double>;
  using I = Types<double>::I;
  using D = V<double>;
  auto each = [&](auto f) {
    int64_t i = 0;
    for (; i + COUNT <= n; i += COUNT)
      f(loaded(x + i), mask ? loaded(mask + i) : I{} == 0);
    D rest{};
    I is_used{};
    for (int k = 0; i < n; i++, k++) rest[k] = x[i], is_used[k] = !mask || mask[i] ? -1 : 0;
    f(rest, is_used);
  };
  const D none{};
  D count{}, sums{}, squares{}, least = none + INFINITE, most = -least;
  each([&](D y, I is_used) {
    count += is_used ? none + 1 : none;
    sums += is_used ? y : none;
    least = is_used & ((y < least) | (y != y)) ? y : least;  // NaN stays
    most = is_used & ((y > most) | (y != y)) ? y : most;
  });
  Measured all = {sum<double>(count), 0, 0, INFINITE, -INFINITE};
  for (int k = 0; k < COUNT; k++) all.least = lesser(all.least, least[k]), all.most = greater(all.most, most[k]);
  const double mean = all.mean = sum<double>(sums) / (all.count > 1 ? all.count : 1);
  each([&](D y, I is_used) { squares += is_used ? (y - mean) * (y - mean) : none; });
  all.squares = sum<double>(squares);
  return all;
}

// Count, mean, sum of squared distances from it and largest magnitude of rows with `mask`.
template <class T> void measure(int64_t n, const T* x, const uint8_t* mask, double* out) {
  const Measured all = measured(n, x, mask);
  const double found[] = {all.count, all.mean, all.squares, all.largest()};
  memcpy(out, found, sizeof found);
}

// As advantages.standardize_by.
template <class T> void standardize(int64_t n, const T* x, const uint8_t* mask, const double* count, const double* mean, const double* squares, const T* largest, T* out) {
  const T centre = T(*mean), divisor = divisor_of<T>(*count, *squares, *largest);
  for (int64_t i = 0; i < n; i++) out[i] = (mask[i] ? x[i] - centre : T(0)) / divisor;
}

// Smallest and largest number of each column of rows [n, columns], n > 0.
template <class T> void extremes(int64_t n, int64_t columns, const T* x, T* least, T* most) {
  constexpr int64_t WIDTH = 16;  // several rows of few columns at once
  const int64_t rows = columns < WIDTH ? WIDTH / columns : 1;
  T low[WIDTH], high[WIDTH];
  auto extend = [&](T* to_least, T* to_most, const T* from_least, const T* from_most, int64_t count) {
    for (int64_t j = 0; j < count; j++) to_least[j] = lesser(to_least[j], from_least[j]), to_most[j] = greater(to_most[j], from_most[j]);
  };
  memcpy(least, x, sizeof(T) * columns);
  memcpy(most, x, sizeof(T) * columns);
  int64_t i = 1;
  if (rows > 1 && n >= rows) {
    const int64_t width = rows * columns;
    memcpy(low, x, sizeof(T) * width);
    memcpy(high, x, sizeof(T) * width);
    for (i = rows; i + rows <= n; i += rows) extend(low, high, x + i * columns, x + i * columns, width);
    for (int64_t j = 0; j < width; j += columns) extend(least, most, low + j, high + j, columns);
  }
  for (; i < n; i++) extend(least, most, x + i * columns, x + i * columns, columns);
}

// Count, means and sums of squared distances from them of columns, [1 + 2·columns], over rows [n, columns] with `mask`.
template <class T> void measure_columns(int64_t n, int64_t columns, const T* x, const uint8_t* mask, double* out) {
  double *mean = out + 1, *squares = mean + columns;
  memset(out, 0, sizeof(double) * (1 + 2 * columns));
  for (int64_t i = 0; i < n; i++) {
    if (!mask[i]) continue;
    out[0]++;
    for (int64_t j = 0; j < columns; j++) mean[j] += x[i * columns + j];
  }
  for (int64_t j = 0; j < columns; j++) mean[j] /= out[0] > 1 ? out[0] : 1;
  for (int64_t i = 0; i < n; i++) {
    if (!mask[i]) continue;
    for (int64_t j = 0; j < columns; j++) squares[j] += (x[i * columns + j] - mean[j]) * (x[i * columns + j] - mean[j]);
  }
}

// Sets what is not finite in `rows` of x, [n, columns], to 0.
template <class T> void clean(int64_t n, int64_t columns, const uint8_t* rows, T* x) {
  auto clean_from = [&](int64_t i, int64_t end) {
    for (; i < end; i++)
      for (int64_t j = i * columns; rows[i] && j < (i + 1) * columns; j++) x[j] = x[j] - x[j] == 0 ? x[j] : T(0);
  };
  int64_t i = 0;
  for (uint64_t flags; i + 8 <= n; i += 8)  // most flags are 0
    if (memcpy(&flags, rows + i, 8), flags) clean_from(i, i + 8);
  clean_from(i, n);
}

// Mean, standard deviation, lowest and highest number of each element, [4, columns], as normalizers._Constants.
template <class T> void constants(int64_t columns, const double* count, const double* mean, const double* var, double clip, double epsilon, double most_of_size, T* out) {
  for (int64_t j = 0; j < columns; j++) {
    const double size = (var[j] + mean[j] * mean[j]) * most_of_size;
    const double std = std::sqrt(var[j] + (var[j] > 0 && size < epsilon ? size : epsilon));
    const double bound = *count == 0 ? std::numeric_limits<double>::infinity() : clip;
    const double found[] = {*count == 0 ? 0 : mean[j], *count == 0 ? 1 : std, -bound, bound};
    for (int64_t k = 0; k < 4; k++) out[k * columns + j] = T(found[k]);
  }
}

// REWARD_STATISTICS of core/episodes.py; `returns` are the sums of rewards in each environment.
template <class T>
void sum_rewards(int64_t steps, int64_t envs, const T* rewards, const uint8_t* valid, double* returns, double* out) {
  const int64_t n = steps * envs;
  for (int64_t j = 0; j < envs; j++) returns[j] = 0;
  for (int64_t i = 0; i < n; i += envs)
    for (int64_t j = 0; j < envs; j++) returns[j] += rewards[i + j];
  const Measured sums = measured<double>(envs, returns, nullptr), all = measured(n, rewards, valid);
  const double found[] = {all.count, sums.least, sums.most, sums.mean, sums.deviation(), all.least, all.most, all.mean, all.deviation()};
  memcpy(out, found, sizeof found);
}

// EPISODE_STATISTICS of core/episodes.py; `open`, `recent` and `finished` are an EpisodeTracker's.
template <class T>
void finish_episodes(int64_t steps, int64_t envs, const T* rewards, const uint8_t* valid, const uint8_t* done, double* open, double* recent, int64_t window, int64_t* finished, double* out) {
  double count = 0, sum = 0, lengths = 0, mean = 0, squares = 0;  // of Welford
  double least = INFINITE, most = -INFINITE;
  for (int64_t t = 0; t < steps; t++)
    for (int64_t j = 0; j < envs; j++) {
      const int64_t i = t * envs + j;
      double &value = open[2 * j], &length = open[2 * j + 1];
      value += rewards[i];
      length += valid[i];
      if (!done[i]) continue;
      recent[(*finished)++ % window] = value;
      const double distance = value - mean;
      count++;
      sum += value;
      lengths += length;
      mean += distance / count;
      squares += distance * (value - mean);
      least = lesser(least, value);
      most = greater(most, value);
      value = length = 0;
    }
  const double one = count / count;  // NaN without an episode
  double latest = 0;
  const int64_t stored = *finished < window ? *finished : window;
  for (int64_t i = 0; i < stored; i++) latest += recent[i];
  const double found[] = {count * one, sum / count, std::sqrt(squares / count), least * one, most * one, lengths / count, latest / double(stored)};
  memcpy(out, found, sizeof found);
}

}  // namespace

// ---- the interface -------------------------------------------------------------------------------------------------
// Engines are of one dtype, which callers pass with them. Calls of one engine must not overlap.

// An engine of a model; what that points to must stay. 0 if there is no memory.
EXPORT(open)(const Model* m) {
  return m->is_double ? (int64_t)create<double>(*m) : (int64_t)create<float>(*m);
}

EXPORT(close)(void* engine, int64_t is_double) {
  is_double ? destroy<double>((Engine<double>*)engine) : destroy<float>((Engine<float>*)engine);
  return 0;
}

// Adds a minibatch's gradients, and with an optimizer clips, steps and zeroes them; the outcome.
EXPORT(learn)(void* engine, int64_t is_double, const Batch* b, const Loss* loss, const Optimizer* o, double* results) {
  return is_double ? learn<double>(*(Engine<double>*)engine, *b, *loss, o, results)
                   : learn<float>(*(Engine<float>*)engine, *b, *loss, o, results);
}

// Copies the weights for `respond`.
EXPORT(pack)(void* engine, int64_t is_double) {
  is_double ? pack<double>(*(Engine<double>*)engine) : pack<float>(*(Engine<float>*)engine);
  return 0;
}

// Outputs of the policy [rows, width] and values [rows, K] with the weights of the last `pack`; either may be null.
EXPORT(respond)(void* engine, int64_t is_double, int64_t rows, const void* const* obs, void* outputs, void* values) {
  is_double ? respond<double>(*(Engine<double>*)engine, rows, obs, 0, (double*)outputs, (double*)values)
            : respond<float>(*(Engine<float>*)engine, rows, obs, 0, (float*)outputs, (float*)values);
  return 0;
}

// `respond` of step `t`, and actions with their log-probabilities; copies the actions to `given`.
EXPORT(act)(const Acting* a, int64_t t, void* given) {
  a->is_double ? act<double>(*a, t, given) : act<float>(*a, t, given);
  return 0;
}

// A step of recurrent cells after the products of its matrices.
EXPORT(cells_forward)(const Cells* c, int64_t step) {
  if (c->is_double) each_row(*c, [=](int64_t row) { cell_forward<double>(*c, step, row); });
  else each_row(*c, [=](int64_t row) { cell_forward<float>(*c, step, row); });
  return 0;
}

// Derivatives of a step, before the products of its matrices.
EXPORT(cells_backward)(const Cells* c, int64_t step) {
  if (c->is_double) each_row(*c, [=](int64_t row) { cell_backward<double>(*c, step, row); });
  else each_row(*c, [=](int64_t row) { cell_backward<float>(*c, step, row); });
  return 0;
}

// Rows of rollouts: see the functions of these names.
#define BY_TYPE(name, ...) do { if (is_double) { using T = double; name<T>(__VA_ARGS__); } else { using T = float; name<T>(__VA_ARGS__); } return 0; } while (0)
EXPORT(bootstrap)(int64_t is_double, int64_t rows, int64_t streams, const void* next, const uint8_t* terminated, const uint8_t* final, const void* final_values, void* out) {
  BY_TYPE(bootstrap, rows, streams, (const T*)next, terminated, final, (const T*)final_values, (T*)out);
}
EXPORT(advantages)(int64_t is_double, int64_t steps, int64_t envs, int64_t streams, const void* rewards, const void* values, const void* next, const uint8_t* done, const uint8_t* known, const uint8_t* passed, const double* gamma, double lambda, void* out) {
  BY_TYPE(advantages, steps, envs, streams, (const T*)rewards, (const T*)values, (const T*)next, done, known, passed, gamma, lambda, (T*)out);
}
EXPORT(discount)(int64_t is_double, int64_t steps, int64_t envs, const void* rewards, const void* initial, const uint8_t* done, double gamma, void* out) {
  BY_TYPE(discount, steps, envs, (const T*)rewards, (const T*)initial, done, gamma, (T*)out);
}
EXPORT(measure)(int64_t is_double, int64_t n, const void* x, const uint8_t* mask, double* out) {
  BY_TYPE(measure, n, (const T*)x, mask, out);
}
EXPORT(standardize)(int64_t is_double, int64_t n, const void* x, const uint8_t* mask, const double* count, const double* mean, const double* squares, const void* largest, void* out) {
  BY_TYPE(standardize, n, (const T*)x, mask, count, mean, squares, (const T*)largest, (T*)out);
}
EXPORT(extremes)(int64_t is_double, int64_t n, int64_t columns, const void* x, void* least, void* most) {
  BY_TYPE(extremes, n, columns, (const T*)x, (T*)least, (T*)most);
}
EXPORT(measure_columns)(int64_t is_double, int64_t n, int64_t columns, const void* x, const uint8_t* mask, double* out) {
  BY_TYPE(measure_columns, n, columns, (const T*)x, mask, out);
}
EXPORT(clean)(int64_t is_double, int64_t n, int64_t columns, const uint8_t* rows, void* x) {
  BY_TYPE(clean, n, columns, rows, (T*)x);
}
EXPORT(constants)(int64_t is_double, int64_t columns, const double* count, const double* mean, const double* var, double clip, double epsilon, double most_of_size, void* out) {
  BY_TYPE(constants, columns, count, mean, var, clip, epsilon, most_of_size, (T*)out);
}
EXPORT(sum_rewards)(int64_t is_double, int64_t steps, int64_t envs, const void* rewards, const uint8_t* valid, double* returns, double* out) {
  BY_TYPE(sum_rewards, steps, envs, (const T*)rewards, valid, returns, out);
}
EXPORT(finish_episodes)(int64_t is_double, int64_t steps, int64_t envs, const void* rewards, const uint8_t* valid, const uint8_t* done, double* open, double* recent, int64_t window, int64_t* finished, double* out) {
  BY_TYPE(finish_episodes, steps, envs, (const T*)rewards, valid, done, open, recent, window, finished, out);
}

// Elementwise functions, to measure their errors: 0 exponential, 1 expm1, 2 tanh, 3 sigmoid, 4 Φ, 5 logarithm, 6 softplus.
EXPORT(apply)(int64_t which, int64_t n, float* x) {
  using T = float;
  n -= n % LANES<T>;
  if (which == 2) activate<T>(TANH, x, nullptr, n);
  else
    for (int64_t i = 0; i < n; i += LANES<T>) {
      V<T> y = load<T>(x + i), p, density;
      standard_normal<T>(y, p, density);
      store<T>(x + i, which == 0 ? exponential<T>(y) : which == 1 ? expm1<T>(y) : which == 3 ? sigmoid<T>(y) : which == 4 ? p : which == 5 ? logarithm<T>(y) : softplus<T>(y));
    }
  return 0;
}

#ifdef DISPATCHES
// The highest level that this processor and its operating system have: 2, 3, 4 of x86-64; 0 for
// another architecture. `__builtin_cpu_supports` needs a library of the compiler.
#if defined(__x86_64__)
namespace {
struct Registers { unsigned a, b, c, d; };
Registers cpuid(unsigned leaf) {
  Registers r{};
  __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
  return r;
}
bool has(unsigned word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
}
}  // namespace
#endif
extern "C" __attribute__((visibility("default"))) int64_t everstep_level() {
#if defined(__x86_64__)
  const Registers one = cpuid(1), seven = cpuid(7), extended = cpuid(0x80000001);
  if (!has(one.c, {27})) return 2;  // OSXSAVE: the system says which registers it keeps
  unsigned kept, high;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  // FMA, MOVBE, F16C; AVX2, BMI1, BMI2; LZCNT; XMM and YMM are kept.
  const bool v3 = has(one.c, {12, 22, 28, 29}) && has(seven.b, {3, 5, 8}) && has(extended.c, {5}) && has(kept, {1, 2});
  // AVX512F, DQ, CD, BW, VL; masks and ZMM are kept.
  const bool v4 = v3 && has(seven.b, {16, 17, 28, 30, 31}) && has(kept, {5, 6, 7});
  return v4 ? 4 : v3 ? 3 : 2;
#else
  return 0;
#endif
}
// The digest of the source that this was built from.
extern "C" __attribute__((visibility("default"))) const char* everstep_source() { return TEXT(SOURCE); }
#endif

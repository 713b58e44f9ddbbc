// Trains two small models with the kernel alone, and prints their weights: for processors that Python does not run on.
#define LEVEL plain
#include "kernel.cpp"

#include <cstdio>
#include <vector>

namespace {

double drawn() {  // of (−1, 1); a linear congruential generator, which is the same everywhere
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return double(state >> 11) / 4503599627370496.0 - 1;
}

template <class T> std::vector<T> numbers(int64_t n, double scale = 1) {
  std::vector<T> x(n);
  for (T& y : x) y = T(scale * drawn());
  return x;
}

template <class T> void train(int64_t kind) {
  constexpr int64_t ROWS = 203, INPUTS = 5, WIDTH = 6;
  const int64_t counts[3] = {0, 2, 2}, options[2] = {2, 4};
  const int64_t sizes[4][3] = {{INPUTS, 37, GELU}, {37, WIDTH, NONE}, {INPUTS, 9, TANH}, {9, 1, NONE}};
  std::vector<T> weights[8], grads[8], means[8], squares[8];
  float steps[8] = {};
  Layer layers[4];
  std::vector<Parameter> parameters;
  for (int i = 0; i < 8; i++) {
    const int64_t* size = sizes[i / 2];
    const int64_t n = i % 2 ? size[1] : size[0] * size[1];
    weights[i] = numbers<T>(n, 0.4);
    for (auto* x : {&grads[i], &means[i], &squares[i]}) x->resize(n);
    parameters.push_back({weights[i].data(), grads[i].data(), means[i].data(), squares[i].data(), &steps[i], n,
                          0.01, 0.9, 0.999, 1e-5, 0, 0, 0});
    if (i % 2) layers[i / 2] = {weights[i - 1].data(), weights[i].data(), grads[i - 1].data(), grads[i].data(), size[0], size[1], size[2]};
  }
  const int64_t size = WIDTH / 2;
  std::vector<T> side = {0, 1, -1}, log_half = {T(0.5), 0, 0}, low = {-1, 0, T(-INFINITY)}, high = {2, T(INFINITY), 1}, half = {T(1.5), 1, 1};
  std::vector<T> mean = numbers<T>(INPUTS), std = {1, 2, 1, 1, T(0.5)}, least(INPUTS, T(-1.5)), most(INPUTS, T(1.5));
  Leaf leaf = {INPUTS, 0, nullptr, mean.data(), std.data(), least.data(), most.data()};
  Model model = {};
  model.is_double = sizeof(T) == 8, model.kind = kind, model.threads = 2;
  memcpy(model.counts, counts, sizeof counts);
  model.layers = layers, model.leaf_count = 1, model.leaves = &leaf;
  if (kind == CATEGORICAL) model.choices = 2, model.options = options;
  else model.side = side.data(), model.log_half = log_half.data(), model.low = low.data(), model.high = high.data(), model.half = half.data();

  auto obs = numbers<T>(ROWS * INPUTS), values = numbers<T>(ROWS), returns = numbers<T>(ROWS), advantages = numbers<T>(ROWS);
  auto logp = numbers<T>(ROWS, 0.1), noise = numbers<T>(ROWS * size), actions = numbers<T>(ROWS * size);
  std::vector<int64_t> choices;
  std::vector<uint8_t> mask(ROWS, 1), allowed(ROWS * WIDTH, 1);
  for (int64_t i = 0; i < ROWS; i++) {
    mask[i] = i % 7 != 3;
    allowed[i * WIDTH + 2 + (i + 1) % 4] = 0;
    if (!mask[i]) obs[i * INPUTS] = returns[i] = T(NAN);
    choices.insert(choices.end(), {i % 2, i % 4});
    logp[i] -= 2;
  }
  const void* leaves = obs.data();
  Batch batch = {};
  batch.rows = ROWS, batch.obs = &leaves, batch.logp = logp.data(), batch.advantages = advantages.data();
  batch.returns = returns.data(), batch.values = values.data(), batch.mask = mask.data(), batch.standardized = 1;
  if (kind == CATEGORICAL) batch.actions = choices.data(), batch.allowed = allowed.data();
  else batch.actions = actions.data(), batch.noise = noise.data();
  Loss loss = {1, 1, 1, 0, 0.2, NAN, 0.5, 0.3, 0.01, kind == CATEGORICAL ? 0 : 0.2};
  Optimizer optimizer = {8, parameters.data(), 0.5, NAN};
  void* engine = (void*)everstep_open_plain(&model);
  double results[RESULTS];
  for (int step = 0; step < 16; step++) {
    const int64_t outcome = everstep_learn_plain(engine, model.is_double, &batch, &loss, &optimizer, results);
    printf("%d", int(outcome));
    for (double x : results) printf(" %.17g", x);
    printf("\n");
  }
  everstep_close_plain(engine, model.is_double);
  for (const auto& each : weights)
    for (T x : each) printf("%.17g\n", double(x));
}

}  // namespace

int main() {
  for (int64_t kind : {CATEGORICAL, PREDICTED_NORMAL}) train<double>(kind), train<float>(kind);
}

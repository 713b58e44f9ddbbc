// Calls the kernel alone, and prints what it computes: for processors that Python does not run on, and for sanitizers.
// Small models of each kind are trained and act, recurrent cells run, and rows of rollouts are summed up, all at once,
// each model in so many threads as the first argument says.
#define LEVEL plain
#include "kernel.cpp"

#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

namespace {

double drawn() {  // of (−1, 1); a linear congruential generator, which is the same everywhere
  static thread_local uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return double(state >> 11) / 4503599627370496.0 - 1;
}

template <class T> std::vector<T> numbers(int64_t n, double scale = 1) {
  std::vector<T> x(n);
  for (T& y : x) y = T(scale * drawn());
  return x;
}

template <class T> void add_to(std::vector<double>& found, const std::vector<T>& x) { found.insert(found.end(), x.begin(), x.end()); }

// Results of 16 steps, the weights after them, and what the model then does.
template <class T> std::vector<double> train(int64_t kind, int64_t threads) {
  constexpr int64_t ROWS = 403, INPUTS = 5, WIDTH = 6;
  const bool is_shared = kind == NORMAL;
  const int64_t counts[3] = {is_shared, 2 - is_shared, 2 - is_shared}, options[2] = {2, 4};
  const int64_t sizes[4][3] = {{INPUTS, 37, GELU}, {37, WIDTH, NONE}, {is_shared ? 37 : INPUTS, is_shared ? 1 : 9, is_shared ? NONE : TANH}, {9, 1, NONE}};
  const int count = is_shared ? 3 : 4;
  std::vector<T> weights[9], grads[9], means[9], squares[9];
  float steps[9] = {};
  Layer layers[4];
  std::vector<Parameter> parameters;
  const int all = 2 * count + is_shared;  // the deviations are the last one
  for (int i = 0; i < all; i++) {
    const int64_t* size = sizes[i / 2];
    const int64_t n = i == 2 * count ? WIDTH : i % 2 ? size[1] : size[0] * size[1];
    weights[i] = numbers<T>(n, 0.4);
    for (auto* x : {&grads[i], &means[i], &squares[i]}) x->resize(n);
    parameters.push_back({weights[i].data(), grads[i].data(), means[i].data(), squares[i].data(), &steps[i], n,
                          0.01, 0.9, 0.999, 1e-5, 0, 0, 0});
    if (i % 2) layers[i / 2] = {weights[i - 1].data(), weights[i].data(), grads[i - 1].data(), grads[i].data(), size[0], size[1], size[2]};
  }
  const int64_t size = is_shared ? WIDTH : WIDTH / 2;
  std::vector<T> side = {0, 1, -1, 0, 1, -1}, log_half = {T(0.5), 0, 0, 0, 0, 0}, low = {-1, 0, T(-INFINITY), -1, -1, -1}, high = {2, T(INFINITY), 1, 1, 1, 1}, half = {T(1.5), 1, 1, 1, 1, 1};
  std::vector<double> mean = numbers<double>(INPUTS), var = {1, 4, 1, 0, 0.25};
  std::vector<T> normal(4 * INPUTS);
  const double seen = 9;
  everstep_constants_plain(sizeof(T) == 8, INPUTS, &seen, mean.data(), var.data(), 1.5, 1e-8, 1e-2, normal.data());
  Leaf leaf = {INPUTS, 0, nullptr, normal.data()};
  Model model = {};
  model.is_double = sizeof(T) == 8, model.kind = kind, model.threads = threads;
  memcpy(model.counts, counts, sizeof counts);
  model.layers = layers, model.leaf_count = 1, model.leaves = &leaf;
  if (kind == CATEGORICAL) model.choices = 2, model.options = options;
  else model.side = side.data(), model.log_half = log_half.data(), model.low = low.data(), model.high = high.data(), model.half = half.data();
  if (is_shared) model.log_std = weights[all - 1].data(), model.log_std_grad = grads[all - 1].data();

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
  Loss loss = {1, 1, 0, 0.2, NAN, 0.5, 0.3, 0.01, kind == CATEGORICAL ? 0 : 0.2};
  Optimizer optimizer = {all, parameters.data(), 0.5, NAN};
  void* engine = (void*)everstep_open_plain(&model);
  std::vector<double> found, results(RESULTS);
  for (int step = 0; step < 16; step++) {
    found.push_back(everstep_learn_plain(engine, model.is_double, &batch, &loss, &optimizer, results.data()));
    add_to(found, results);
  }
  for (int i = 0; i < all; i++) add_to(found, weights[i]);
  for (T& x : obs) x = x == x ? x : T(0);  // a row that is left out holds NaN
  for (T& x : noise) x = std::fabs(x) + T(0.1);
  auto uniform = numbers<double>(ROWS * 2 * 4);
  for (double& x : uniform) x = std::fabs(x);
  auto outputs = numbers<T>(ROWS * WIDTH);
  everstep_pack_plain(engine, model.is_double);
  void* acted = kind == CATEGORICAL ? (void*)choices.data() : actions.data();
  std::vector<int64_t> given(ROWS * WIDTH);  // room for numbers of either size
  const Acting acting{engine, model.is_double, ROWS, &leaves, 0, kind == CATEGORICAL ? allowed.data() : nullptr,
                      kind == CATEGORICAL ? (const void*)uniform.data() : noise.data(), outputs.data(), values.data(), acted, logp.data()};
  everstep_act_plain(&acting, 0, given.data());
  everstep_close_plain(engine, model.is_double);
  for (T& x : outputs) x = x < T(-1e30) ? T(-1e30) : x;  // of an option that is masked
  for (const auto* x : {&outputs, &values, &logp}) add_to(found, *x);
  kind == CATEGORICAL ? add_to(found, choices) : add_to(found, actions);
  return found;
}

// Everything that cells write in three steps forward and back.
template <class T> std::vector<double> run_cells(bool is_gru, int64_t threads) {
  constexpr int64_t STEPS = 3, ROWS = 21, SIZE = 37;
  const int64_t gates = is_gru ? 3 : 4, n = ROWS * SIZE;
  std::vector<T> x[10];
  const int64_t counts[10] = {STEPS * gates * n, gates * n, (STEPS + 1) * n, (STEPS + 1) * n, STEPS * n, STEPS * n, STEPS * n, STEPS * gates * n, STEPS * gates * n, n};
  for (int i = 0; i < 10; i++) x[i] = numbers<T>(counts[i]);
  auto d_cell = numbers<T>(n);
  std::vector<uint8_t> first(STEPS * ROWS);
  for (int64_t i = 0; i < STEPS * ROWS; i++) first[i] = i % 5 == 2;
  const Cells cells = {sizeof(T) == 8, is_gru, threads, STEPS, ROWS, SIZE, x[0].data(), x[1].data(), x[2].data(), is_gru ? nullptr : x[3].data(), x[4].data(),
                       x[5].data(), first.data(), x[6].data(), x[7].data(), x[8].data(), x[9].data(), d_cell.data()};
  for (int64_t step = 0; step < STEPS; step++) everstep_cells_forward_plain(&cells, step);
  for (int64_t step = STEPS; step-- > 0;) everstep_cells_backward_plain(&cells, step);
  std::vector<double> found;
  for (const auto& each : x) add_to(found, each);
  add_to(found, d_cell);
  return found;
}

// Rows of a rollout: advantages, discounted sums, moments, and statistics of rewards and episodes.
template <class T> std::vector<double> run_rows() {
  constexpr int64_t STEPS = 13, ENVS = 7, STREAMS = 2, N = STEPS * ENVS, IS_DOUBLE = sizeof(T) == 8;
  auto rewards = numbers<T>(N * STREAMS), values = numbers<T>(N * STREAMS), next = numbers<T>(N * STREAMS), out = numbers<T>(N * STREAMS), initial = numbers<T>(ENVS);
  auto open = numbers<double>(2 * ENVS), recent = numbers<double>(5), returns = numbers<double>(ENVS);
  std::vector<uint8_t> done(N * STREAMS), known(N * STREAMS);
  for (int64_t i = 0; i < N * STREAMS; i++) done[i] = i % 5 == 2, known[i] = i % 3 != 1;
  const double gamma[STREAMS] = {0.99, 0.9};
  int64_t finished = 3;
  std::vector<double> found, moments(4), columns(1 + 2 * ENVS), sums(9), ended(7);
  everstep_advantages_plain(IS_DOUBLE, STEPS, ENVS, STREAMS, rewards.data(), values.data(), next.data(), done.data(), known.data(), nullptr, gamma, 0.95, out.data());
  add_to(found, out);
  std::vector<T> least(ENVS), most(ENVS);
  everstep_extremes_plain(IS_DOUBLE, STEPS, ENVS, rewards.data(), least.data(), most.data());
  for (const auto* x : {&least, &most}) add_to(found, *x);
  everstep_discount_plain(IS_DOUBLE, STEPS, ENVS, rewards.data(), initial.data(), done.data(), 0.99, out.data());
  out.resize(N);
  add_to(found, out);
  everstep_measure_plain(IS_DOUBLE, N, rewards.data(), known.data(), moments.data());
  const T largest = 2;
  std::vector<T> ends(N), standard(N);
  everstep_standardize_plain(IS_DOUBLE, N, rewards.data(), known.data(), &moments[0], &moments[1], &moments[2], &largest, standard.data());
  everstep_bootstrap_plain(IS_DOUBLE, N / STREAMS, STREAMS, next.data(), done.data(), known.data(), values.data(), ends.data());
  for (const auto* x : {&ends, &standard}) add_to(found, *x);
  everstep_measure_columns_plain(IS_DOUBLE, STEPS, ENVS, rewards.data(), known.data(), columns.data());
  everstep_clean_plain(IS_DOUBLE, STEPS, ENVS, known.data(), values.data());
  add_to(found, values);
  everstep_sum_rewards_plain(IS_DOUBLE, STEPS, ENVS, rewards.data(), known.data(), returns.data(), sums.data());
  everstep_finish_episodes_plain(IS_DOUBLE, STEPS, ENVS, rewards.data(), known.data(), done.data(), open.data(), recent.data(), 5, &finished, ended.data());
  for (const auto* x : {&moments, &columns, &returns, &sums, &open, &recent, &ended}) add_to(found, *x);
  return found;
}

template <class T> std::vector<std::function<std::vector<double>()>> runs_of(int64_t threads) {
  return {[=] { return train<T>(CATEGORICAL, threads); }, [=] { return train<T>(NORMAL, threads); }, [=] { return train<T>(PREDICTED_NORMAL, threads); },
          [=] { return run_cells<T>(false, threads); }, [=] { return run_cells<T>(true, threads); }, run_rows<T>};
}

}  // namespace

// Numbers of float64 in the first line, of float32 in the second.
int main(int count, char** arguments) {
  const int64_t threads = count > 1 ? atoi(arguments[1]) : 2;
  auto all = runs_of<double>(threads), rest = runs_of<float>(threads);
  const size_t half = all.size();
  all.insert(all.end(), rest.begin(), rest.end());
  std::vector<std::vector<double>> found(all.size());
  std::vector<std::thread> running;
  for (size_t i = 0; i < all.size(); i++) running.emplace_back([&, i] { found[i] = all[i](); });
  for (auto& each : running) each.join();
  for (size_t i = 0; i < found.size(); i++) {
    for (double x : found[i]) printf("%.17g ", x);
    if (i + 1 == half || i + 1 == found.size()) printf("\n");
  }
}

"""The faults: a file, a piece of its text, what replaces it, and the tests that must fail then."""

from typing import NamedTuple

#: How a failure names the place of a fault, the closest first: its line, its function, the line
#: that goes wrong elsewhere, or none: a test that compares numbers is what fails.
TOLD = ("line", "function", "use", "numbers")


class Fault(NamedTuple):
    """One fault; `before` occurs once in `file`."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    #: How it has to be told at least, one of `TOLD`; None if it is enough that tests fail.
    told: None | str = None


CORE = "src/everstep/"
ADAPTERS = "adapters/everstep_adapters/"
T = "tests/everstep/"
A = "tests/everstep_adapters/"


def core(name: str, file: str, before: str, after: str, *tests: str) -> Fault:
    return Fault(name, CORE + file, before, after, tuple(T + x for x in tests))


def adapter(name: str, file: str, before: str, after: str, *tests: str) -> Fault:
    return Fault(name, ADAPTERS + file, before, after, tuple(A + x for x in tests))


FAULTS = [
    # ---- advantages and episodes ----
    core(
        "gae: termination does not override a final observation",
        "core/advantages.py",
        "next_values).masked_fill(terminated, 0.0)",
        "next_values.masked_fill(terminated, 0.0))",
        "core/test_advantages.py",
        "algorithms/test_bootstrap_oracle.py",
    ),
    core(
        "gae: passed rows keep their own decay",
        "core/advantages.py",
        "torch.where(passed, 1.0, trace)",
        "trace",
        "core/test_advantages.py",
        "bonuses",
    ),
    core(
        "recurrence: NaN before a boundary passes it",
        "core/advantages.py",
        "later.copy_(torch.where(still == 0, later, extended))",
        "later.copy_(extended)",
        "core/test_advantages.py",
    ),
    core(
        "returns: the discount is not cut where an episode ended",
        "core/advantages.py",
        "decay[1:].masked_fill_(done[:-1], 0.0)",
        "decay[1:].masked_fill_(done[1:], 0.0)",
        "core/test_advantages.py",
    ),
    core(
        "deviation: biased",
        "core/advantages.py",
        "return squares / (count - 1).clamp(min=1)",
        "return squares / count.clamp(min=1)",
        "core/test_advantages.py",
    ),
    core(
        "standardize: equal rows are divided by their rounding error",
        "core/advantages.py",
        "return std <= 8 *",
        "return std < 0 *",
        "core/test_advantages.py",
    ),
    core(
        "values_beyond: the last observation is left out",
        "core/advantages.py",
        "torch.cat([acted_on, values[-1:]])",
        "torch.cat([acted_on, torch.zeros_like(values[-1:])])",
        "core/test_advantages.py",
        "bonuses",
    ),
    core(
        "episodes: the window is one too short",
        "core/episodes.py",
        "order > order[-1] - self.window",
        "order > order[-1] - self.window + 1",
        "core/test_episodes.py",
    ),
    core(
        "episodes: an open episode continues after its end",
        "core/episodes.py",
        "sums[-1].masked_fill(done[-1], 0.0)",
        "sums[-1]",
        "core/test_episodes.py",
    ),
    core(
        "episodes: the ring buffer forgets how many it has seen",
        "core/episodes.py",
        "self.finished += order[-1]",
        "self.finished.copy_(order[-1])",
        "core/test_episodes.py",
    ),
    # ---- losses and objectives ----
    core(
        "surrogate: the dual clip bounds positive advantages, too",
        "core/losses.py",
        "(advantages < 0) & (surrogate < least)",
        "surrogate < least",
        "core/test_losses.py",
    ),
    core(
        "surrogate: clipped rows keep their derivative",
        "core/losses.py",
        "advantages.masked_fill(is_clipped, 0.0)",
        "advantages.clone()",
        "core/test_losses.py",
    ),
    core(
        "values: clipping takes the smaller loss",
        "core/losses.py",
        "torch.max(distance, clipped)",
        "torch.min(distance, clipped)",
        "core/test_losses.py",
    ),
    core(
        "kl: the other estimate",
        "core/losses.py",
        "log_ratio.expm1() - log_ratio",
        "log_ratio.square() / 2",
        "core/test_losses.py",
    ),
    core(
        "objective: the entropy is subtracted from the gain",
        "objectives.py",
        "total = total - self.entropy_coeff * entropy",
        "total = total + self.entropy_coeff * entropy",
        "test_objectives.py",
        "core/fast",
    ),
    # ---- normalisation ----
    core(
        "moments: rows between merged parts are forgotten",
        "core/normalizers.py",
        "(own + squares + between) / rows",
        "(own + squares) / rows",
        "core/test_normalizers.py",
    ),
    core(
        "moments: masked rows count in the spread",
        "core/normalizers.py",
        "centred = (_doubled(x).sub_(mean).masked_fill_(o, 0.0) for x, o in pieces)",
        "centred = (_doubled(x).sub_(mean) for x, o in pieces)",
        "core/test_normalizers.py",
    ),
    core(
        "moments: merged copies count the start twice",
        "core/normalizers.py",
        "n = other.count - start.count\n",
        "n = other.count\n",
        "core/test_normalizers.py",
        "algorithms/test_operations.py",
    ),
    # ---- rollout and sequences ----
    core(
        "rollout: the sum of rewards continues beyond an end",
        "core/rollouts/_rollout.py",
        "self.reversed_returns[-1].masked_fill(self.done[-1], 0.0)",
        "self.reversed_returns[-1]",
        "core/rollouts",
        "algorithms",
    ),
    core(
        "rollout: overlapping history is read while it is written",
        "core/rollouts/_rollout.py",
        "last.clone() if overlap else last",
        "last",
        "core/rollouts",
        "policies/test_memory.py",
    ),
    core(
        "rollout: windows of final observations begin one step early",
        "core/rollouts/_rollout.py",
        "leaf[t + 1 : t + 1 + self.history, rows]",
        "leaf[t : t + self.history, rows]",
        "core/rollouts",
        "policies/test_memory.py",
        "algorithms/test_final_values.py",
    ),
    core(
        "rollout: invalid rows may end episodes",
        "core/rollouts/_rollout.py",
        "self.truncated.masked_fill_(invalid, False)",
        "pass",
        "core/rollouts",
        "algorithms",
    ),
    core(
        "sequences: the first flag of a step is the next one's",
        "core/rollouts/_sequences.py",
        "torch.cat([torch.zeros_like(rollout.first[:1]), rollout.first[:-1]])",
        "rollout.first",
        "core/rollouts",
        "policies/test_memory.py",
    ),
    core(
        "sequences: chunks share only their own rows",
        "core/rollouts/_sequences.py",
        "if shared is None and len(pieces) > 1:",
        "if False:",
        "core/rollouts",
        "algorithms/test_chunks.py",
    ),
    core(
        "sequences: excluded rows keep a weight",
        "core/rollouts/_sequences.py",
        "centred = (minibatch.advantages - mean).masked_fill(minibatch.weight == 0, 0.0)",
        "centred = minibatch.advantages - mean",
        "core/rollouts",
        "algorithms/test_chunks.py",
    ),
    # ---- estimates ----
    core(
        "final values: a lost one is bootstrapped from, though it is to be masked",
        "algorithms/estimates.py",
        "rollout.known[t, n] = present",
        "rollout.known[t, n] = True",
        "algorithms",
    ),
    core(
        "final values: a lost one is approximated by the next row",
        "algorithms/estimates.py",
        'rollout.values[t, n] if on_missing_final == "approximate" else 0.0',
        'rollout.values[t + 1, n] if on_missing_final == "approximate" else 0.0',
        "algorithms",
    ),
    core(
        "rewards: clipped before they are scaled",
        "algorithms/estimates.py",
        "scaled = scaled * config.reward_scale",
        "scaled = scaled.clamp(-1, 1) * config.reward_scale",
        "algorithms",
    ),
    core(
        "advantages: streams that do not end stop at invalid rows",
        "algorithms/estimates.py",
        "passed = ~rollout.valid & ~episodic",
        "passed = None",
        "bonuses",
        "algorithms",
    ),
    core(
        "statistics: gradient norms are means over skipped steps, too",
        "algorithms/estimates.py",
        "taken = max(1, steps - refused - skipped)",
        "taken = max(1, steps)",
        "algorithms",
        "algorithms/test_updates.py",
    ),
    # ---- update ----
    core(
        "updater: clipping raises small gradients",
        "algorithms/updates/_updater.py",
        "mul_(self.max_grad_norm), one)",
        "mul_(self.max_grad_norm), one * 2)",
        "algorithms/test_updates.py",
        "algorithms/test_algorithm.py",
    ),
    core(
        "updater: a step on NaN is taken",
        "algorithms/updates/_updater.py",
        "torch.ne(norm - norm, zero, out=self._found_inf)",
        "torch.ne(zero, zero, out=self._found_inf)",
        "algorithms/test_updates.py",
        "algorithms/test_algorithm.py",
    ),
    core(
        "kl: the first minibatch adapts the learning rate",
        "algorithms/updates/_meter.py",
        'if self._counts["steps"] > 1:',
        'if self._counts["steps"] > 0:',
        "algorithms/test_updates.py",
        "algorithms/test_algorithm.py",
    ),
    core(
        "kl: NaN does not end an update on the device",
        "algorithms/updates/_meter.py",
        "exceeds = ~(kl_div <= self._target) & ~self._ended",
        "exceeds = (kl_div > self._target) & ~self._ended",
        "algorithms/test_meter.py",
    ),
    core(
        "schedule: adaptive rates leave their range",
        "schedulers.py",
        "min(max(lr * factor, min(lr, ADAPTIVE_MIN)), max(lr, ADAPTIVE_MAX))",
        "lr * factor",
        "test_schedulers.py",
    ),
    core(
        "adam: the count of a skipped step stays",
        "core/fast/adam.py",
        "self._count.add_(1).sub_(found_inf)",
        "self._count.add_(1)",
        "core/fast",
        "algorithms/test_updates.py",
    ),
    core(
        "kernel: the deviation's gradient lacks the entropy",
        "core/fast/kernel.cpp",
        "by_scaled * x - by_logp + weight * by_entropy",
        "by_scaled * x - by_logp",
        "core/fast",
    ),
    core(
        "kernel: the derivative of the ratio is left out",
        "core/fast/kernel.cpp",
        "is_clipped ? ratio * T(0) : advantage * ratio",
        "is_clipped ? ratio * T(0) : advantage",
        "core/fast",
    ),
    core(
        "kernel: standard deviations divide by all rows",
        "core/fast/kernel.cpp",
        "(count > 2 ? count - 1 : 1)",
        "(count > 1 ? count : 1)",
        "core/fast",
    ),
    core(
        "kernel: the last rows of a tile are left out",
        "core/fast/kernel.cpp",
        "const int64_t left = b.rows - start, count = left < TILE ? left : TILE;\n  for",
        "const int64_t left = b.rows - start, count = left < TILE ? left - left % 2 : TILE;\n  for",
        "core/fast",
    ),
    core(
        "kernel: a skipped step counts",
        "core/fast/kernel.cpp",
        "const bool is_finite = norm - norm == 0;",
        "const bool is_finite = true;",
        "core/fast",
        "algorithms/test_seen.py",
    ),
    core(
        "kernel: derivatives of a cell pass a reset",
        "core/fast/kernel.cpp",
        "d_after_cell = resets ? through : through + v.get(d_cell + j)",
        "d_after_cell = through + v.get(d_cell + j)",
        "core/fast/test_recurrent.py",
    ),
    core(
        "kernel: the last numbers of a cell are left out",
        "core/fast/kernel.cpp",
        "if (j < size) f(j, Part<T>{size - j});",
        "if (j + 1 < size) f(j, Part<T>{size - j});",
        "core/fast/test_recurrent.py",
    ),
    core(
        "kernel: advantages pass the end of an episode",
        "core/fast/kernel.cpp",
        "done[i] || t + 1 == steps ? T(0)",
        "t + 1 == steps ? T(0)",
        "core/fast/test_rows.py",
    ),
    core(
        "kernel: the mean of the last episodes counts all",
        "core/fast/kernel.cpp",
        "*finished < window ? *finished : window",
        "window",
        "core/fast/test_rows.py",
    ),
    core(
        "recurrent: the first tile alone has its resets",
        "core/fast/recurrent.py",
        "self.first[:, tile].contiguous()",
        "self.first[:, : tile.stop - tile.start].contiguous()",
        "core/fast/test_recurrent.py",
    ),
    # ---- distributions, policies, bonuses ----
    core(
        "softplus: the side of an upper bound",
        "distributions/_continuous.py",
        "slope = F.logsigmoid(self._side * u)",
        "slope = F.logsigmoid(u)",
        "distributions",
    ),
    core(
        "categorical: entropy of masked options is NaN",
        "distributions/_discrete.py",
        "log_probs = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)",
        "log_probs = self.log_probs",
        "distributions",
    ),
    core(
        "recurrent: states are not reset within a sequence",
        "policies/_recurrent.py",
        "states = self.next_states(states, first[:, start])",
        "pass",
        "policies",
        "algorithms",
    ),
    core(
        "rnd: an episodic stream is not cut",
        "bonuses/_rnd.py",
        "decay[1:].masked_fill_(ends[:-1], 0.0)",
        "pass",
        "bonuses",
    ),
    core(
        "rnd: rows of weight 0 reach the predictor",
        "bonuses/_rnd.py",
        "targets = targets.masked_fill(excluded, 0.0)",
        "pass",
        "bonuses",
    ),
    core(
        "rnd: a share of the rows counts for itself only",
        "bonuses/_rnd.py",
        "weight = weight * (share / weight.sum().clamp(min=1e-12))",
        "pass",
        "bonuses",
    ),
    # ---- evaluation, conditions, checkpoints ----
    core(
        "evaluation: short episodes are favoured",
        "evaluation.py",
        "counted = ended & (quota > 0)",
        "counted = ended",
        "test_evaluation.py",
    ),
    core(
        "evaluation: spread of a sample",
        "evaluation.py",
        "returns.std(correction=0)",
        "returns.std()",
        "test_evaluation.py",
    ),
    core(
        "conditions: NaN moves the reference",
        "conditions.py",
        "if not math.isnan(value):\n            self.old_value = value",
        "if True:\n            self.old_value = value",
        "test_conditions.py",
    ),
    core(
        "conditions: an equal value is a record",
        "conditions.py",
        "higher = value > self.max_",
        "higher = value >= self.max_",
        "test_conditions.py",
    ),
    core(
        "best: the last of equal results",
        "trainers/_files.py",
        'value > self._best.get("value", -math.inf)',
        'value >= self._best.get("value", -math.inf)',
        "trainers/test_resuming.py::test_of_equal_results_the_first_one_is_the_best",
    ),
    core(
        "best: a run that goes on forgets it",
        "trainers/_files.py",
        'self._best = best if best.get("key") == self._best_key else {}',
        "self._best = {}",
        "trainers/test_resuming.py::test_a_run_that_goes_on_remembers_its_best",
    ),
    core(
        "checkpoints: a body that was changed is read",
        "core/checkpoints.py",
        'if _checksum(body) != document["sha256"]:',
        "if False:",
        "core/test_checkpoints.py",
    ),
    core(
        "checkpoints: an integer beyond 64 bits is written in decimal",
        "core/checkpoints.py",
        "small = abs(value) < 2**63",
        "small = True",
        "core/test_checkpoints.py",
    ),
    # ---- several processes ----
    core(
        "ranks: moments forget the distance of their means",
        "core/ranks/_group.py",
        "squares = squares + its_squares + shift.square() * (n * m / total)",
        "squares = squares + its_squares",
        "core/test_ranks.py::test_reductions_are_those_of_all_rows",
    ),
    core(
        "ranks: gradients are weighted equally, not by rows",
        "core/ranks/_group.py",
        "self.collectives.sum(torch.cat(packed).mul_(rows))",
        "self.collectives.sum(torch.cat(packed))",
        "core/test_ranks.py::test_reductions_are_those_of_all_rows",
    ),
    core(
        "ranks: gradients are divided by the number of ranks",
        "core/ranks/_group.py",
        "torch.div(total, count, out=flat)",
        "torch.div(total, self.size, out=flat)",
        "core/test_ranks.py::test_reductions_are_those_of_all_rows",
    ),
    core(
        "ranks: terms of the loss are divided by the number of ranks",
        "core/ranks/_group.py",
        "(values / count).unbind()",
        "(values / self.size).unbind()",
        "core/test_ranks.py::test_reductions_are_those_of_all_rows",
    ),
    core(
        "ranks: one that has failed is waited for",
        "core/ranks/_failures.py",
        "            if found := self._found():\n                raise found\n",
        "",
        "trainers/test_rank_failures.py",
    ),
    core(
        "ranks: an error that all have ends one",
        "core/ranks/_failures.py",
        'if also_alike or record["at"] != self._told_at:',
        "if True:",
        "trainers/test_rank_failures.py",
    ),
    core(
        "ranks: the smallest of the largest",
        "core/ranks/_group.py",
        "most = [torch.stack(x).amax(0)",
        "most = [torch.stack(x).amin(0)",
        "core/test_ranks.py::test_reductions_are_those_of_all_rows",
    ),
    # ---- adapters ----
    adapter(
        "gymnasium: rewards of a reset count",
        "gymnasium/endings.py",
        "row.rewards[pending] = 0",
        "pass",
        "gymnasium",
    ),
    adapter(
        "gymnasium: a row at the limit waits for another reset",
        "gymnasium/endings.py",
        "np.logical_and(self._pending, ~expired, out=self._pending)",
        "pass",
        "gymnasium",
    ),
    adapter(
        "gymnasium: a row that is done is reset again at its limit",
        "gymnasium/endings.py",
        "remaining = expired & ~row.first",
        "remaining = expired",
        "gymnasium",
    ),
    adapter(
        "isaacgym: a reset's rewards count",
        "common/endings.py",
        "DataKeys.REWARDS: _where(pending, 0, rewards),",
        "DataKeys.REWARDS: rewards,",
        "isaacgym",
    ),
    adapter(
        "isaacgym: the final observation is the task's own memory",
        "isaacgym/endings.py",
        "_copy(self._observations.leaves(outcome.obs))\n        obs = self._observations",
        "self._observations.leaves(outcome.obs)\n        obs = self._observations",
        "isaacgym",
    ),
    adapter(
        "isaacgym: time is up one env step late",
        "isaacgym/time_outs.py",
        "self._task.clock >= self._limit - 1",
        "self._task.clock >= self._limit",
        "isaacgym",
    ),
    adapter(
        "torchrl: a waiting agent stays absent after the reset",
        "torchrl/endings.py",
        "self._absent = (absent | own.done) & ~env.reset",
        "self._absent = absent | own.done",
        "torchrl",
    ),
    adapter(
        "torchrl: the clock goes on after a reset",
        "torchrl/endings.py",
        "self._elapsed = elapsed.masked_fill(ends.reset, 0)",
        "self._elapsed = elapsed",
        "torchrl",
    ),
    adapter(
        "export: a horizon's last observation is the next episode's",
        "export/horizon.py",
        "leaves = tuple(leaf.clone() for leaf in self._observation.flatten(obs))",
        "leaves = tuple(self._observation.flatten(obs))",
        "export",
    ),
    adapter(
        "metrics: a mean counts rows without a number",
        "common/metrics.py",
        "weights = values.isfinite().double()",
        "weights = torch.ones_like(values)",
        "common/test_metrics.py",
    ),
    adapter(
        "pettingzoo: an agent that is not controlled ignores its mask",
        "pettingzoo/vector.py",
        ".sample(mask)",
        ".sample()",
        "pettingzoo",
    ),
]

"""Faults of code for a device, which a CPU does not show; `tests/device` has to tell them."""

from tests.mutants.faults import ADAPTERS, CORE, Fault

#: Tests by name, of any mark.
_ANY = ("-m", "slow or not slow")
_BUDGET = "tests/device/test_budget.py::test_training_waits_and_copies_as_the_table_says"
_BESIDE = (
    "tests/device/test_budget.py::test_what_is_beside_training_waits_and_copies_as_the_table_says"
)
_JAX = "tests/device/test_handoff.py::test_rows_of_jax_are_read_before_it_computes_without_actions"
_RANKS = "tests/device/test_ranks.py::test_ranks_train_as_on_the_host_and_wait_as_the_table_says"
_EVERSTEP = "tests/device/test_everstep.py"
_HANDOFF = ("tests/device/test_handoff.py",)
_ALIKE = f"{_EVERSTEP}::test_a_replay_is_what_it_would_have_been"
_ACTS = f"{_EVERSTEP}::test_what_acts_casts_and_normalises_anew"
_MOVED = f"{_EVERSTEP}::test_what_acts_is_recorded_anew_where_weights_have_moved"
_LATER = f"{_EVERSTEP}::test_what_is_recorded_later_may_lie_in_the_memory_of_what_was_before"


def fault(name: str, file: str, before: str, after: str, *tests: str, told: str = "line") -> Fault:
    """A fault, and the tests that tell it: rows of the budget, or whole names."""
    root = ADAPTERS if file.startswith(("common/", "export/", "gymnasium/", "jax/")) else CORE
    names = [x if x.startswith("tests/") else f"{_BUDGET}[{x}]" for x in tests]
    return Fault(f"device: {name}", root + file, before, after, (*_ANY, *names), told)


HANDOFF, CUDA = "common/handoff.py", "core/graphs/_cuda.py"
UPDATER, METER = "algorithms/updates/_updater.py", "algorithms/updates/_meter.py"
RECORDING, ESTIMATES = "algorithms/recording.py", "algorithms/estimates.py"
POLICY, SEQUENCES = "policies/_core.py", "core/rollouts/_sequences.py"
DISCRETE, CONTINUOUS = "distributions/_discrete.py", "distributions/_continuous.py"
EPISODES, ROLLOUT = "core/episodes.py", "core/rollouts/_rollout.py"
ALGORITHM = "algorithms/algorithm.py"

DEVICE = [
    # ---- copies and pinned memory ----
    fault(
        "a pinned buffer is written before its copy is done",
        HANDOFF,
        "            self._copied[self.side].synchronize()",
        "            pass",
        *_HANDOFF,
        told="use",
    ),
    fault(
        "the event of the other side is recorded",
        HANDOFF,
        "self._copied[self.side].record(stream)",
        "self._copied[1 - self.side].record(stream)",
        *_HANDOFF,
        told="use",
    ),
    fault(
        "actions are read before they arrive",
        HANDOFF,
        "        self._copied.synchronize()\n        return host.numpy()",
        "        return host.numpy()",
        *_HANDOFF,
        told="function",
    ),
    fault(
        "the event of a copy to the host is recorded before it",
        HANDOFF,
        "        host.copy_(tensor, non_blocking=True)\n"
        "        self._copied.record(torch.cuda.current_stream(tensor.device))",
        "        self._copied.record(torch.cuda.current_stream(tensor.device))\n"
        "        host.copy_(tensor, non_blocking=True)",
        *_HANDOFF,
    ),
    fault(
        "rows are copied from memory that is not pinned",
        HANDOFF,
        "pin_memory=on_cuda",
        "pin_memory=False",
        "Gymnasium, next step",
        told="use",
    ),
    fault(
        "the copy of rows blocks",
        HANDOFF,
        "non_blocking=bool(self._copied)",
        "non_blocking=False",
        "Gymnasium, next step",
    ),
    fault(
        "arrays come by DLPack without a stream",
        HANDOFF,
        "        return from_dlpack(value)\n",
        "        return from_dlpack(value.__dlpack__(stream=-1))\n",
        *_HANDOFF,
    ),
    fault(
        "actions are copied one by one",
        HANDOFF,
        "self._copy(tensor.detach()) if tensor.is_cuda",
        "np.array([x.item() for x in tensor.flatten()]) if tensor.is_cuda",
        "Gymnasium, next step",
    ),
    fault(
        "the event of a copy to the device is recorded before it",
        HANDOFF,
        "        self._device.copy_(self._hosts[self.side], non_blocking=bool(self._copied))\n"
        "        if self._copied:\n"
        "            stream = torch.cuda.current_stream(self._device.device)\n"
        "            self._copied[self.side].record(stream)\n",
        "        if self._copied:\n"
        "            stream = torch.cuda.current_stream(self._device.device)\n"
        "            self._copied[self.side].record(stream)\n"
        "        self._device.copy_(self._hosts[self.side], non_blocking=bool(self._copied))\n",
        *_HANDOFF,
    ),
    fault(
        "another library computes where PyTorch still reads",
        HANDOFF,
        "        torch.cuda.current_stream(device).synchronize()",
        "        pass",
        *_HANDOFF,
        told="use",
    ),
    fault(
        "another library resets where PyTorch still reads",
        "gymnasium/env.py",
        "            finish_reading(self._foreign)",
        "            pass",
        *_HANDOFF,
        told="use",
    ),
    fault(
        "JAX resets where PyTorch still reads",
        "jax/env.py",
        "        finish_reading(self._jax_device)\n        key, self._key",
        "        key, self._key",
        f"{_JAX}[reset]",
        told="function",
    ),
    fault(
        "JAX unpacks its state where PyTorch still reads",
        "jax/env.py",
        "        finish_reading(self._jax_device)\n        to_tensors, restore",
        "        to_tensors, restore",
        f"{_JAX}[state]",
        told="function",
    ),
    fault(
        "JAX takes a state where PyTorch still reads",
        "jax/env.py",
        "        finish_reading(self._jax_device)\n        like",
        "        like",
        f"{_JAX}[load]",
        told="function",
    ),
    fault(
        "actions go to JAX through the host",
        "jax/actions.py",
        "        sent = action.detach()\n",
        "        sent = action.detach().cpu()\n",
        "JAX",
    ),
    fault(
        "rows are exported in a wait for each tensor",
        "export/vector_env.py",
        'TensorDict(row, batch_size=[self.num_envs]).to("cpu") if is_there else row',
        "{key: value.cpu() for key, value in row.items()}",
        f"{_BESIDE}[to_gymnasium, same step]",
    ),
    fault(
        "evaluations wait for each column",
        "evaluation.py",
        "torch.cat(columns).cpu()",
        "torch.cat([x.cpu() for x in columns])",
        f"{_BESIDE}[evaluate]",
    ),
    fault(
        "an environment's tensors go through the host",
        ROLLOUT,
        "leaves = [x.to(row.dtype) for",
        "leaves = [x.cpu().to(row) for",
        "episodes",
    ),
    # ---- streams and graphs ----
    fault(
        "the stream beside does not wait for what was begun",
        CUDA,
        "    stream.wait_stream(current)\n",
        "",
        "continuous, graphs",
        told="function",
    ),
    fault(
        "nothing waits for the stream beside",
        CUDA,
        "        raise\n    current.wait_stream(stream)",
        "        raise",
        "continuous, graphs",
        told="function",
    ),
    fault(
        "a generator is not registered",
        CUDA,
        "            graph.register_generator_state(generator)",
        "            pass",
        f"{_EVERSTEP}::test_generators_of_an_environment_are_captured",
        told="use",
    ),
    fault(
        "work is captured on the stream that it runs on",
        CUDA,
        "with _beside(torch.cuda.Stream()), static_shapes():",
        "with static_shapes():",
        "continuous, graphs",
        told="use",
    ),
    fault(
        "captured work is not done",
        CUDA,
        "        graph.replay()  # recording alone does nothing\n",
        "",
        f"{_ALIKE}[False-Walk]",
        told="use",
    ),
    fault(
        "a pool is used again after its last graph",
        CUDA,
        "        if not self._graphs:",
        "        if self._handle is None:",
        _LATER,
        told="use",
    ),
    fault(
        "a graph has the address of an argument that was freed",
        RECORDING,
        "return self._held[name].copy_(x)",
        "return x",
        "KL stop, graphs",
        told="use",
    ),
    fault(
        "a result stays in memory that another graph overwrites",
        RECORDING,
        "            ).clone()",
        "            )",
        _LATER,
        told="use",
    ),
    fault(
        "recurrent states are not brought to where the next rollout reads them",
        RECORDING,
        "collected.states, strict=True):\n                own.copy_(x)",
        "collected.states, strict=True):\n                own",
        f"{_ALIKE}[True-Walk]",
        told="numbers",
    ),
    fault(
        "an order is drawn on the host, in a recorded update",
        RECORDING,
        "make(count, device=parts.rollout.device)",
        "make(count)",
        "KL stop, graphs",
        told="use",
    ),
    fault(
        "an order is drawn on the host",
        RECORDING,
        "permute=partial(torch.randperm, device=device)",
        "permute=torch.randperm",
        "continuous",
        told="use",
    ),
    # ---- what acts, where the environment is not recorded ----
    fault(
        "an environment keeps actions that the next ones overwrite",
        RECORDING,
        "        return sample._replace(actions=tuple(x.clone() for x in sample.actions))",
        "        return sample",
        f"{_ALIKE}[False-Stepped]",
        told="numbers",
    ),
    fault(
        "observations stay those of the capture",
        RECORDING,
        'held = tuple(self._hold(f"obs.{i}", x) for i, x in enumerate(obs))',
        "held = obs",
        f"{_ALIKE}[False-Stepped]",
        told="numbers",
    ),
    fault(
        "states are read where those before the capture were",
        RECORDING,
        'kept = tuple(self._hold(f"states.{i}", x) for i, x in enumerate(states))',
        "kept = states",
        f"{_ALIKE}[True-Stepped]",
        told="numbers",
    ),
    fault(
        "states after a vector step are not brought to where the next one reads them",
        RECORDING,
        "sample.states, strict=True):\n                own.copy_(x)",
        "sample.states, strict=True):\n                own",
        f"{_ALIKE}[True-Stepped]",
        told="numbers",
    ),
    fault(
        "states are returned in memory that another graph overwrites",
        RECORDING,
        "            return sample._replace(states=kept)",
        "            return sample",
        f"{_MOVED}[Endless]",
        told="use",
    ),
    fault(
        "an argument is copied into new memory each time",
        RECORDING,
        "        return self._held[name].copy_(x)",
        "        return torch.empty_like(x).copy_(x)",
        f"{_ALIKE}[False-Stepped]",
    ),
    fault(
        "casts and constants are those of before the capture",
        RECORDING,
        "            with parts.policy.own_casts():",
        "            with nullcontext():",
        f"{_ACTS}[casts]",
        told="function",
    ),
    fault(
        "constants of the normaliser are those of before the capture",
        POLICY,
        "            with self.keep_casts():",
        "            with nullcontext():",
        f"{_ACTS}[constants]",
        told="use",
    ),
    fault(
        "casts are those of before the capture",
        POLICY,
        "        torch.clear_autocast_cache()\n        try:\n            with self.keep_casts():\n"
        "                yield\n        finally:\n            torch.clear_autocast_cache()\n",
        "        with self.keep_casts():\n            yield\n",
        f"{_ACTS}[casts]",
        told="use",
    ),
    fault(
        "the key lacks where weights are",
        RECORDING,
        "= (x.data_ptr(), x.requires_grad, gradient)",
        "= (x.requires_grad, gradient)",
        f"{_MOVED}[Stepped]",
        told="use",
    ),
    fault(
        "what acts is replayed while evaluating",
        ALGORITHM,
        "            records = not (deterministic or self.is_evaluating)",
        "            records = True",
        f"{_EVERSTEP}::test_rollouts_are_evaluated[True-Stepped]",
        told="numbers",
    ),
    # ---- random numbers ----
    fault(
        "noise of choices is drawn on the host",
        DISCRETE,
        "torch.empty_like(self.log_probs).exponential_()",
        "torch.empty(self.log_probs.shape).exponential_().to(self.log_probs)",
        "discrete",
    ),
    fault(
        "noise of real numbers is drawn on the host",
        CONTINUOUS,
        "torch.randn_like(self.mean)",
        'torch.randn(self.mean.shape, device="cpu").to(self.mean)',
        "continuous",
    ),
    fault(
        "a generator is seeded in a capture",
        DISCRETE,
        ".exponential_()",
        ".exponential_(generator=torch.Generator(self.log_probs.device).manual_seed(0))",
        "episodes, graphs",
    ),
    fault(
        "a generator that no graph knows is drawn from in a capture",
        DISCRETE,
        ".exponential_()",
        ".exponential_(generator=torch.Generator(self.log_probs.device))",
        "episodes, graphs",
    ),
    # ---- the update ----
    fault(
        "constants are copied to the device in each step",
        UPDATER,
        "        zero, one, tiny = self._constants",
        "        zero, one, tiny = [torch.tensor(x, device=norm.device) for x in (0.0, 1.0, 1e-6)]",
        "discrete",
    ),
    fault(
        "a buffer that results go to is on the host",
        UPDATER,
        "self._found_inf = torch.zeros((), dtype=torch.float32, device=device)",
        "self._found_inf = torch.zeros((), dtype=torch.float32)",
        "discrete",
        told="use",
    ),
    fault(
        "learning rates are written anew in each update",
        UPDATER,
        '            if group["lr"] is not rate:',
        "            if True:",
        "continuous, graphs",
        told="function",
    ),
    fault(
        "steps are counted on the host",
        METER,
        "        self._counted[0] += ~self._ended",
        "        self._counted[0] += not self._ended",
        "KL stop, graphs",
    ),
    fault(
        "the host decides whether a learning rate rises",
        "schedulers.py",
        "            raised = torch.where(is_near, lr * ADAPTIVE_FACTOR, lr)",
        "            raised = lr * ADAPTIVE_FACTOR if is_near else lr",
        "adaptive rate, graphs",
    ),
    fault(
        "indices of sequences are on the host",
        SEQUENCES,
        "return x.index_select(0, index) if",
        "return x[index.cpu()] if",
        "KL stop",
    ),
    fault(
        "the optimizer is not capturable",
        UPDATER,
        '            if "capturable" in group and device.type == "cuda":',
        "            if False:",
        "AMSGrad, graphs",  # Adam's own step is called without the optimizer
        told="numbers",
    ),
    fault(
        "learning rates move",
        UPDATER,
        '                group["lr"] = rate\n',
        '                group["lr"] = rate.clone()\n',
        "continuous, graphs",
        told="function",
    ),
    fault(
        "the host decides whether a step is taken",
        UPDATER,
        "        elif self._skips_on_device:",
        "        elif False:",
        "continuous",
        told="function",
    ),
    fault(
        "a counter is on the host",
        UPDATER,
        "self.grad_norm = torch.zeros((), device=device)",
        "self.grad_norm = torch.zeros(())",
        "discrete",
        told="use",
    ),
    fault(
        "the scale of gradients is read",
        UPDATER,
        "                flat.mul_(scale)",
        "                flat.mul_(float(scale))",
        "discrete",
    ),
    fault(
        "skipped steps are counted on the host",
        UPDATER,
        "self.skipped += self._found_inf",
        "self.skipped += float(self._found_inf)",
        "discrete",
    ),
    fault(
        "the host asks for the divergence in recorded work",
        METER,
        "if self._target is None or is_static():",
        "if self._target is None:",
        "KL stop, graphs",
        told="numbers",
    ),
    fault(
        "sums are replaced in recorded work",
        METER,
        "self._sums += found.masked_fill(self._ended, 0.0)",
        "self._sums = self._sums + found.masked_fill(self._ended, 0.0)",
        "KL stop, graphs",
        f"{_ALIKE}[False-Walk]",
    ),
    fault(
        "the divergence is compared on the host",
        METER,
        "exceeds = ~(kl_div <= self._target) & ~self._ended",
        "exceeds = ~self._ended & (not float(kl_div) <= self._target)",
        "KL stop, graphs",
    ),
    fault(
        "the learning rate is read beside the statistics",
        ALGORITHM,
        '                others["lr"] = lr\n',
        "                pass\n",
        "continuous, graphs",
        told="function",
    ),
    fault(
        "the learning rate is read by its schedule",
        ALGORITHM,
        "        self._end_update(lr)",
        "        self._end_update()",
        "continuous, graphs",
        told="use",
    ),
    fault(
        "an adapted learning rate is a new tensor",
        "schedulers.py",
        "            lr.copy_(torch.minimum(torch.maximum(changed, low), high))",
        '            group["lr"] = torch.minimum(torch.maximum(changed, low), high)',
        "adaptive rate, graphs",
        told="use",
    ),
    # ---- the rollout and its statistics ----
    fault(
        "truncated rows are found on the host",
        ESTIMATES,
        "rollout.final.squeeze(-1).nonzero(as_tuple=True)",
        "rollout.final.squeeze(-1).cpu().nonzero(as_tuple=True)",
        "episodes",
    ),
    fault(
        "states of truncated rows are chosen by a mask",
        ESTIMATES,
        "tuple(x[rows] for x in states)",
        "tuple(x[final.squeeze(-1)] for x in states)",
        "LSTM",
    ),
    fault(
        "the host looks whether rows are finite",
        ESTIMATES,
        "        finite &= leaf.isfinite().flatten(1).all(-1)",
        "        finite &= leaf.isfinite().flatten(1).all(-1) | bool(leaf.isfinite().all())",
        "episodes",
    ),
    fault(
        "the scale of rewards is read",
        ESTIMATES,
        "    return torch.where(vanishes(scale, largest), 1.0, scale)",
        "    return torch.ones_like(scale) if vanishes(scale, largest) else scale",
        "normalised",
    ),
    fault(
        "a mean is made of numbers of the host",
        EPISODES,
        "torch.arange(self.window, device=self.recent.device)",
        "torch.arange(self.window)",
        "episodes",
    ),
    fault(
        "statistics are copied one by one",
        EPISODES,
        "packed.tolist()",
        "[x.item() for x in packed]",
        "discrete",
    ),
    fault(
        "a range is made on the host",
        EPISODES,
        "torch.arange(1, len(total), device=x.device)",
        "torch.arange(1, len(total))",
        "episodes",
        told="function",
    ),
    fault(
        "the last returns are a new tensor",
        EPISODES,
        "self.recent.copy_(padded.scatter(0, slot, returns)[: self.window])",
        "self.recent = padded.scatter(0, slot, returns)[: self.window]",
        "episodes, graphs",
        f"{_ALIKE}[False-Walk]",
    ),
    fault(
        "the number of episodes is read",
        EPISODES,
        "order > order[-1] - self.window",
        "order > int(order[-1]) - self.window",
        "episodes",
    ),
    fault(
        "numbers are copied to the device",
        ESTIMATES,
        "[like.new_full((1,), number) for number in numbers]",
        "[like.new_tensor([number]) for number in numbers]",
        "discrete",
    ),
    fault(
        "recorded work looks for truncated rows",
        ESTIMATES,
        "    if is_static():\n        return _value_all_rows",
        "    if False:\n        return _value_all_rows",
        "episodes, graphs",
        told="function",
    ),
    fault(
        "present rows are chosen by a mask",
        ESTIMATES,
        "        final_obs = _zeroed(final_obs, present)",
        "        final_obs = tuple(x[present] for x in final_obs)",
        "episodes",
    ),
    fault(
        "lost rows are looked for",
        ESTIMATES,
        'if rollout.device.type == "cpu" or mixes_rows(policy.model):',
        "if True:",
        "episodes",
        told="function",
    ),
    fault(
        "lost rows are filled by a number of the host",
        ESTIMATES,
        "        rollout.known[t, n] = present",
        "        rollout.known[t, n] = present\n        rollout.known[t[:0], n[:0]] = False",
        "final observations masked",
    ),
    fault(
        "lost rows are valued",
        ESTIMATES,
        "rollout.final_values[t, n] = torch.where(present, values, instead)",
        "rollout.final_values[t, n] = values",
        f"{_ALIKE}[False-Losing]",
        told="numbers",
    ),
    fault(
        "extremes are looked at on the host",
        ROLLOUT,
        "torch.cat([x.flatten() for x in extremes])",
        "torch.cat([x.flatten().cpu() for x in extremes])",
        "discrete",
    ),
    fault(
        "whether anything was counted is read",
        "core/normalizers.py",
        "is_empty = moments.count == 0  #",
        "is_empty = torch.full((), bool(moments.count == 0), device=moments.count.device)  #",
        "normalised",
    ),
    fault(
        "moments are on the host",
        "core/normalizers.py",
        "bound = torch.full_like(moments.mean, math.inf if clip is None else clip)",
        "bound = torch.full(moments.mean.shape, math.inf if clip is None else clip)",
        "normalised",
        told="function",
    ),
    fault(
        "a checkpoint's recurrent states stay where they were",
        ALGORITHM,
        "tuple(x.to(device) for x in memory)",
        "tuple(memory)",
        f"{_EVERSTEP}::test_states_go_to_the_device",
        told="numbers",
    ),
    fault(
        "masks of the kernel of advantages are mistaken for each other",
        "core/fused/__init__.py",
        "torch.ops.everstep.gae(*tensors,",
        "torch.ops.everstep.gae(*tensors[:4], passed, known,",
        f"{_EVERSTEP}::test_a_device_computes_what_the_host_does[final observations masked]",
        told="numbers",
    ),
    fault(
        "a discount of the kernel of advantages is read",
        "core/fused/__init__.py",
        "number = 0.0 if isinstance(gamma, torch.Tensor) else gamma",
        "number = float(rewards.new_full((), float(gamma)))",
        "continuous",
    ),
    # ---- several ranks ----
    fault(
        "sums of ranks are used before they are there",
        "core/ranks/_collectives.py",
        "dist.all_reduce(x, async_op=self._is_of_gloo(x))",
        "dist.all_reduce(x, async_op=True) and None",
        f"{_RANKS}[eager]",
    ),
    fault(
        "NCCL is given a tensor of the host",
        "core/ranks/_collectives.py",
        "        return filled.to(self.device)",
        "        return filled",
        f"{_RANKS}[NCCL alone]",
        told="use",
    ),
    fault(
        "gradients of ranks are summed on the host",
        "core/ranks/_group.py",
        "self.collectives.sum(torch.cat(packed).mul_(rows))",
        "self.collectives.sum(torch.cat(packed).mul_(rows).cpu()).to(packed[0])",
        f"{_RANKS}[eager]",
    ),
    fault(
        "ranks start other collectives",
        "core/ranks/_group.py",
        "sums = self.collectives.sum(torch.cat(packed).mul_(rows))",
        "flat = torch.cat(packed).mul_(rows)\n"
        "        parts = self.collectives.gather(flat) if self.rank else []\n"
        "        sums = sum(parts) if parts else self.collectives.sum(flat)",
        f"{_RANKS}[eager]",
        told="use",
    ),
    fault(
        "statistics of ranks are read one by one",
        "core/ranks/_group.py",
        "            texts = [bytes(x) for x in parts.numpy()]",
        "            texts = [x.cpu().numpy().tobytes() for x in self.collectives.gather(sent)]",
        f"{_RANKS}[NCCL alone]",
    ),
]

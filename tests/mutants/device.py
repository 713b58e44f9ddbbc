"""Faults of code for a device, which a CPU does not show; `tests/device` has to tell them."""

from tests.mutants.faults import ADAPTERS, CORE, Fault

#: Tests by name, of any mark.
_ANY = ("-m", "slow or not slow")
_BUDGET = "tests/device/test_budget.py::test_training_waits_and_copies_as_the_table_says"
_EVERSTEP = "tests/device/test_everstep.py"
_HANDOFF = ("tests/device/test_handoff.py",)
_ALIKE = f"{_EVERSTEP}::test_a_replay_is_what_it_would_have_been"
_LATER = f"{_EVERSTEP}::test_what_is_recorded_later_may_lie_in_the_memory_of_what_was_before"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Fault:
    """A fault, and the tests that tell it: rows of the budget, or whole names."""
    root = ADAPTERS if file.startswith("common/") else CORE
    names = [x if x.startswith("tests/") else f"{_BUDGET}[{x}]" for x in tests]
    return Fault(f"device: {name}", root + file, before, after, (*_ANY, *names))


HANDOFF, CUDA = "common/handoff.py", "core/graphs/_cuda.py"
UPDATER, METER = "algorithms/updates/_updater.py", "algorithms/updates/_meter.py"
RECORDING, ESTIMATES = "algorithms/recording.py", "algorithms/estimates.py"
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
    ),
    fault(
        "the event of the other side is recorded",
        HANDOFF,
        "self._copied[self.side].record(stream)",
        "self._copied[1 - self.side].record(stream)",
        *_HANDOFF,
    ),
    fault(
        "actions are read before they arrive",
        HANDOFF,
        "        self._copied.synchronize()\n        return host.numpy()",
        "        return host.numpy()",
        *_HANDOFF,
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
    # ---- streams and graphs ----
    fault(
        "the stream beside does not wait for what was begun",
        CUDA,
        "    stream.wait_stream(current)\n",
        "",
        "continuous, graphs",
    ),
    fault(
        "nothing waits for the stream beside",
        CUDA,
        "        raise\n    current.wait_stream(stream)",
        "        raise",
        "continuous, graphs",
    ),
    fault(
        "a generator is not registered",
        CUDA,
        "            graph.register_generator_state(generator)",
        "            pass",
        f"{_EVERSTEP}::test_generators_of_an_environment_are_captured",
    ),
    fault(
        "work is captured on the stream that it runs on",
        CUDA,
        "with _beside(torch.cuda.Stream()), static_shapes():",
        "with static_shapes():",
        "continuous, graphs",
    ),
    fault(
        "captured work is not done",
        CUDA,
        "        graph.replay()  # recording alone does nothing\n",
        "",
        f"{_ALIKE}[False-Walk]",
    ),
    fault(
        "a pool is used again after its last graph",
        CUDA,
        "        if not self._graphs:",
        "        if self._handle is None:",
        _LATER,
    ),
    fault(
        "a graph has the address of an argument that was freed",
        RECORDING,
        "return self._held[name].copy_(x)",
        "return x",
        "KL stop, graphs",
    ),
    fault(
        "a result stays in memory that another graph overwrites",
        RECORDING,
        "            ).clone()",
        "            )",
        _LATER,
    ),
    fault(
        "recurrent states are not brought to where the next rollout reads them",
        RECORDING,
        "                own.copy_(x)",
        "                own",
        f"{_ALIKE}[True-Walk]",
    ),
    fault(
        "an order is drawn on the host, in a recorded update",
        RECORDING,
        "make(count, device=parts.rollout.device)",
        "make(count)",
        "KL stop, graphs",
    ),
    fault(
        "an order is drawn on the host",
        RECORDING,
        "permute=partial(torch.randperm, device=device)",
        "permute=torch.randperm",
        "continuous",
    ),
    # ---- the update ----
    fault(
        "the optimizer is not capturable",
        UPDATER,
        '            if "capturable" in group and device.type == "cuda":',
        "            if False:",
        "AMSGrad, graphs",  # Adam's own step is called without the optimizer
    ),
    fault(
        "learning rates move",
        UPDATER,
        '                group["lr"] = rate\n',
        '                group["lr"] = rate.clone()\n',
        "continuous, graphs",
    ),
    fault(
        "the host decides whether a step is taken",
        UPDATER,
        "        elif self._skips_on_device:",
        "        elif False:",
        "continuous",
    ),
    fault(
        "a counter is on the host",
        UPDATER,
        "self.grad_norm = torch.zeros((), device=device)",
        "self.grad_norm = torch.zeros(())",
        "discrete",
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
    ),
    fault(
        "the learning rate is read by its schedule",
        ALGORITHM,
        "        self._end_update(lr)",
        "        self._end_update()",
        "continuous, graphs",
    ),
    fault(
        "an adapted learning rate is a new tensor",
        "schedulers.py",
        "            lr.copy_(torch.minimum(torch.maximum(changed, low), high))",
        '            group["lr"] = torch.minimum(torch.maximum(changed, low), high)',
        "adaptive rate, graphs",
    ),
    # ---- the rollout and its statistics ----
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
    ),
    fault(
        "a checkpoint's recurrent states stay where they were",
        ALGORITHM,
        "tuple(x.to(device) for x in memory)",
        "tuple(memory)",
        f"{_EVERSTEP}::test_states_go_to_the_device",
    ),
]

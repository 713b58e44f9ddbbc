"""What adapters say of what they found."""

import torch
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from everstep.specs import leaf_specs, options


def spec_in_words(spec: TensorSpec) -> str:
    """Kind, shape and dtype of a spec's only leaf, or of each by its name."""
    leaves = {path: _leaf_in_words(leaf) for path, leaf in leaf_specs(spec).items()}
    if not isinstance(spec, Composite):
        return leaves[()]
    return ", ".join(f"{'.'.join(path)}: {words}" for path, words in leaves.items())


def _leaf_in_words(leaf: TensorSpec) -> str:
    return f"{_kind(leaf)} {list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


def _kind(leaf: TensorSpec) -> str:
    """The public name of a spec's class, with its numbers of options."""
    for kind, name in ((Bounded, "Bounded"), (Unbounded, "Unbounded")):
        if isinstance(leaf, kind):
            return name
    counts = options(leaf)
    if len(set(counts)) == 1:  # such as two for each element of a `Binary`
        counts = counts[:1]
    return f"{type(leaf).__name__}({', '.join(map(str, counts))})"


def copies_in_words(source: torch.device, device: torch.device) -> str:
    """How rows of host memory reach a device."""
    if device.type == "cpu":
        return "one copy into rows of host memory, which the tensors show; nothing is allocated"
    return (
        f"one copy into {'pinned ' * (device.type == 'cuda')}rows of host memory, one packed copy "
        f"from {source} to {device}; actions back through one"
    )

"""Formats of exported policies: MLflow models, PyTorch programs and ONNX models.

A writer takes a program, an example of its inputs and outputs, facts about the policy and a path,
and returns a function that runs what it has written.
"""

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from torch.export import ExportedProgram

from .._version import __version__
from ..core.installation import install_command
from ..data import ExportFormat
from ..env.formats import numpy_dtype
from ..errors import EverstepError, ExportError

Tensors = dict[str, torch.Tensor]

#: Outputs of a program for its inputs, by name.
Run = Callable[[Tensors], Tensors]

#: Start of the names of next states in ONNX, where outputs cannot be named as inputs.
_NEXT = "next."

_SERVED_POLICY = Path(__file__).with_name("_served_policy.py")


def signature(inputs: Tensors, outputs: Tensors, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Names, dtypes and shapes of inputs and outputs, for readers of an exported file.

    The first dimension is `"batch"`. `"states"` maps inputs that are 0 at the start of an episode
    to the outputs that follow them. `facts` have the `"choices"` of inputs, which a caller checks
    where the format cannot raise.
    """

    def described(leaves: Tensors) -> dict[str, Any]:
        return {
            name: {"dtype": numpy_dtype(x.dtype).name, "shape": ["batch", *x.shape[1:]]}
            for name, x in leaves.items()
        }

    states = {
        name: output for name in inputs for output in (name, f"{_NEXT}{name}") if output in outputs
    }
    found = {"inputs": described(inputs), "outputs": described(outputs), "states": states}
    return {"everstep": __version__, **facts, **found}


def write_torch(
    program: ExportedProgram,
    inputs: Tensors,
    outputs: Tensors,
    facts: Mapping[str, Any],
    path: Path,
) -> Run:
    """Write an archive for `torch.export.load`, with the signature as `signature.json` in it."""
    archive = path.with_suffix(".pt2")  # PyTorch warns of other names
    text = json.dumps(signature(inputs, outputs, facts), indent=1)
    torch.export.save(program, archive, extra_files={"signature.json": text})
    archive.rename(path)
    return _loaded(path)


def _loaded(path: Path) -> Run:
    """A program of `torch.export.save`, loaded."""
    with path.open("rb") as file:
        run: Run = torch.export.load(file).module()
    return run


def write_mlflow(
    program: ExportedProgram,
    inputs: Tensors,
    outputs: Tensors,
    facts: Mapping[str, Any],
    path: Path,
) -> Run:
    """Write MLflow's directory: program, signature, example, requirements, code."""
    from ._mlflow import mlflow  # slow import

    file = path.with_name("policy.pt2")
    torch.export.save(program, file)
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(_SERVED_POLICY),
        artifacts={"program": str(file)},
        signature=mlflow.models.ModelSignature(_schema(inputs), _schema(outputs)),
        input_example={name: leaf.numpy() for name, leaf in inputs.items()},
        pip_requirements=[
            f"torch=={Version(torch.__version__).public}",
            f"numpy=={np.__version__}",
            f"mlflow=={mlflow.__version__}",
        ],
        model_config={"choices": facts["choices"]},
        metadata={"everstep": __version__, **facts},
    )
    return _loaded(path / "artifacts" / "policy.pt2")


def _schema(leaves: Tensors) -> Any:
    """MLflow's schema of leaves `[B, …]`: names, dtypes and shapes."""
    from mlflow.types import Schema, TensorSpec

    named = leaves.items()
    return Schema([TensorSpec(x.numpy().dtype, (-1, *x.shape[1:]), name) for name, x in named])


def write_onnx(
    program: ExportedProgram,
    inputs: Tensors,
    outputs: Tensors,
    facts: Mapping[str, Any],
    path: Path,
) -> Run:
    """Write an ONNX model, with the signature in its metadata under `everstep`.

    Raises:
        EverstepError: If a library is missing.
        ExportError: If ONNX has no such operation.

    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  PyTorch's exporter needs it
    except ImportError as error:
        raise EverstepError(
            f"ONNX models need the package {error.name}: {install_command('onnx')}"
        ) from error
    names = [f"{_NEXT}{name}" if name in inputs else name for name in outputs]
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx", "onnxscript", "onnx_ir"):
            warnings.simplefilter("ignore")  # of PyTorch's own code
            model = torch.onnx.export(
                program,
                input_names=list(inputs),
                output_names=names,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # a model's operations may fail in any way
        reason = str(error).strip().splitlines()
        raise ExportError(
            f"PyTorch cannot write it as ONNX: {reason[0] if reason else type(error).__name__}"
        ) from error
    assert model is not None
    text = json.dumps(signature(inputs, dict(zip(names, outputs.values(), strict=True)), facts))
    model.model.metadata_props["everstep"] = text
    model.save(path)
    return _session(onnxruntime, path)


def _session(onnxruntime: Any, path: Path) -> Run:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name.removeprefix(_NEXT) for output in session.get_outputs()]
    taken = {each.name for each in session.get_inputs()}  # a model need not read every input

    def run(inputs: Tensors) -> Tensors:
        arrays = {name: x.numpy() for name, x in inputs.items() if name in taken}
        found = session.run(None, arrays)
        return {name: torch.from_numpy(np.asarray(x)) for name, x in zip(names, found, strict=True)}

    return run


class _quiet:
    """Context without messages below errors of some loggers."""

    def __init__(self, *names: str) -> None:
        self._levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}

    def __enter__(self) -> None:
        for logger in self._levels:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *error: Any) -> None:
        for logger, level in self._levels.items():
            logger.setLevel(level)


#: Writers by format.
WRITERS: dict[ExportFormat, Callable[..., Run]] = {
    "mlflow": write_mlflow,
    "onnx": write_onnx,
    "torch-export": write_torch,
}

"""A policy as MLflow serves it: a PyTorch program that takes tensors by name and returns them so.

`Policy.export` copies this file into the model it writes, where it runs without Everstep; it is
not imported here.
"""

import mlflow
import torch
from mlflow.pyfunc import PythonModel, PythonModelContext


class ExportedPolicy(PythonModel):  # type: ignore[misc]
    """The likeliest actions of a policy in one env step."""

    # Inputs are checked against the model's signature.
    _skip_type_hint_validation = True

    def load_context(self, context: PythonModelContext) -> None:
        """Read the program."""
        self.program = torch.export.load(context.artifacts["program"]).module()

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Arrays by the names in the model's signature, for arrays by theirs."""
        with torch.no_grad():
            outputs = self.program({name: torch.tensor(x) for name, x in model_input.items()})
        return {name: x.numpy() for name, x in outputs.items()}


mlflow.models.set_model(ExportedPolicy())

"""MLflow model of an exported policy: a PyTorch program with named inputs and outputs.

`Policy.export` copies this file into the model, where it runs without Everstep. It is not imported
here.
"""

import mlflow
import torch
from mlflow.pyfunc import PythonModel, PythonModelContext


class ExportedPolicy(PythonModel):  # type: ignore[misc]
    """The most likely actions of a policy in one env step."""

    # MLflow checks inputs against the model's signature instead.
    _skip_type_hint_validation = True

    def load_context(self, context: PythonModelContext) -> None:
        """Load the program."""
        self.program = torch.export.load(context.artifacts["program"]).module()

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Output arrays for input arrays, both by the names in the model's signature."""
        with torch.no_grad():
            outputs = self.program({name: torch.tensor(x) for name, x in model_input.items()})
        return {name: x.numpy() for name, x in outputs.items()}


mlflow.models.set_model(ExportedPolicy())

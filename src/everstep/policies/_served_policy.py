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
        ends = context.model_config["choices"].items()
        self.choices = {name: [torch.tensor(end) for end in both] for name, both in ends}

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Output arrays for input arrays, both by the names in the model's signature.

        Raises:
            ValueError: If an input has a choice that its space does not have.

        """
        inputs = {name: torch.tensor(x) for name, x in model_input.items()}
        for name, (first, last) in self.choices.items():
            x = inputs[name]
            rows = x[:, -1] if x.ndim > 1 + first.ndim else x  # of a window, the present row
            rows, first, last = rows.flatten(1), first.flatten(), last.flatten()
            missing = ((rows < first) | (rows > last)).nonzero()
            if len(missing):
                row, i = missing[0].tolist()
                raise ValueError(
                    f"`{name}` of row {row} is {rows[row, i]} in element {i}, which is no choice "
                    f"of its space: {first[i]} to {last[i]} are."
                )
        with torch.no_grad():
            outputs = self.program(inputs)
        return {name: x.numpy() for name, x in outputs.items()}


mlflow.models.set_model(ExportedPolicy())

"""Results of a search: the best values as a recipe, and a picture of what mattered."""

from pathlib import Path
from typing import Any

from everstep.config import apply_overrides, dump, load

from ._space import KEY, Space
from ._study import require_optuna, without_experimental_warnings


def best_text(study: Any, space: Space, file: str, overrides: list[str], score: str) -> str:
    """The file with the best trial's values, as a recipe without its search space."""
    import json

    best = study.best_trial
    found = [f"{key}={json.dumps(x)}" for key, x in space.decode(best.params).items()]
    values = dict(apply_overrides(load(file), [*overrides, *found]).values)
    del values[KEY]
    given = values.pop("recipe", None) or {}
    header = {
        "task": given.get("task", str(values.get("env_cls"))),
        "source": f"everstep tune, trial {best.number} of {len(study.trials)}",
        "score": score,
    }
    kept = {k: given[k] for k in ("published",) if k in given}
    lines = [f"# The best of {len(study.trials)} trials: {best.value:.5g}.", ""]
    return "\n".join([*lines, dump({"recipe": header | kept, **values})])


def draw_importances(study: Any, path: Path) -> bool:
    """Draw the importance of each hyperparameter; False if the trials are too few for it.

    Source: S. Watanabe et al., "PED-ANOVA", 2023, arXiv 2304.10255.
    """
    optuna = require_optuna()
    states = optuna.trial.TrialState
    if sum(trial.state == states.COMPLETE for trial in study.trials) < 4:
        return False
    from everstep.visualization import require_matplotlib, save_figure

    with without_experimental_warnings():
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    names = list(found)[::-1]
    figure = require_matplotlib()[0](figsize=(5.0, 0.4 * len(names) + 1.0), layout="constrained")
    panel = figure.subplots()
    panel.barh(names, [found[name] for name in names])
    panel.set_xlabel("importance")
    panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
    return True

"""Lines of `results.jsonl` as `everstep reproduce` writes them."""

from typing import Any

from everstep_lab.recipes import Recipe


def result(recipe: Recipe, side: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    """A line as `everstep reproduce` writes it, of a curve from 0 to the score."""
    steps = [recipe.env_steps * i // 5 for i in range(6)]
    return {
        **{"recipe": recipe.name, "digest": recipe.digest, "side": side, "seed": seed},
        **{"env_steps": steps[-1], "seconds": 60.0, "processor_seconds": 120.0, "training": score},
        "evaluation": {"mean": score + 1, "std": 0.0, "returns": [score + 1] * 20},
        "curve": {
            "env_steps": steps,
            "seconds": [12.0 * i for i in range(6)],
            "processor_seconds": [24.0 * i for i in range(6)],
            "return": [score * i / 5 for i in range(6)],
        },
        "versions": {"everstep": "0.1.0", "torch": "2.13.0"},
        "machine": {"cpu": "a processor", "cores": 2},
        **more,
    }

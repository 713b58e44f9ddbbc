"""Draw the diagrams of the guides: `python docs/images/diagrams.py`.

The same code gives the same bytes.
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#f58518", "#54a24b", "#e45756", "#8a8f98"


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle") -> str:
    """A line of text."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"


def box(x: float, y: float, w: float, h: float, colour: str, *lines: str) -> str:
    """A coloured box with lines of text in it."""
    first = y + h / 2 + 5 - 8 * (len(lines) - 1)
    shape = (
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5" fill="{colour}" '
        f'fill-opacity="0.18" stroke="{colour}"/>'
    )
    return shape + "".join(text(x + w / 2, first + 16 * i, each) for i, each in enumerate(lines))


def arrow(*points: tuple[float, float]) -> str:
    """A line through the points, with a head."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{GREY}" marker-end="url(#head)"/>'


def save(name: str, width: int, height: int, *parts: str) -> None:
    """Write a picture with a white background, readable on dark pages, too."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker>'
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" fill="#222">\n'
        f'<defs>{head}</defs><rect width="{width}" height="{height}" fill="#fff"/>\n'
    )
    (HERE / name).write_text(svg + "\n".join(parts) + "\n</svg>\n", encoding="utf-8")


def train_step() -> None:
    """A rollout, its advantages, its minibatches."""
    cells = [box(20 + 22 * t, 50 + 22 * n, 20, 20, BLUE) for t in range(8) for n in range(4)]
    batches = [box(440, 42 + 26 * i, 110, 22, GREEN, "minibatch") for i in range(4)]
    save(
        "train_step.svg",
        700,
        190,
        *cells,
        text(106, 36, "rollout: horizon vector steps →"),
        text(106, 158, "num_envs environments ↓"),
        arrow((202, 94), (240, 94)),
        box(242, 60, 140, 68, ORANGE, "advantages", "γ, λ, episode ends"),
        arrow((384, 94), (436, 94)),
        *batches,
        text(495, 166, "num_sgd_iters epochs"),
        arrow((552, 94), (590, 94)),
        box(592, 60, 96, 68, GREY, "optimizer", "step each"),
    )


def ends() -> None:
    """Values that are bootstrapped where an episode ends."""
    parts = []
    for y, colour, end, value in (
        (40, RED, "terminated: the task is over", "0"),
        (130, BLUE, "truncated: the time is up", "γ · V(final observation)"),
    ):
        parts += [box(20 + 70 * i, y, 52, 36, GREY, f"obs {i}") for i in range(4)]
        parts += [arrow((72 + 70 * i, y + 18), (88 + 70 * i, y + 18)) for i in range(4)]
        parts += [box(300, y, 92, 36, colour, "final obs")]
        parts += [text(20, y - 8, end, anchor="start"), arrow((394, y + 18), (428, y + 18))]
        parts += [box(430, y, 240, 36, colour, f"last reward + {value}")]
    save("ends.svg", 690, 190, *parts)


def autoreset() -> None:
    """Rows of an episode's end with each autoreset mode."""
    parts = []
    rows = {
        "NEXT_STEP": [("obs 1", BLUE), ("final", RED), ("reset: not valid", GREY), ("obs 1", BLUE)],
        "SAME_STEP": [("obs 1", BLUE), ("first, final_obs", RED), ("obs 1", BLUE)],
        "DISABLED": [("obs 1", BLUE), ("first, final_obs", RED), ("obs 1", BLUE)],
    }
    for i, (mode, cells) in enumerate(rows.items()):
        y = 36 + 54 * i
        parts.append(text(16, y + 24, mode, anchor="start"))
        for t, (words, colour) in enumerate(cells):
            parts.append(box(120 + 140 * t, y, 128, 38, colour, words))
    heads = [text(184 + 140 * t, 22, f"row {t}") for t in range(4)]
    save("autoreset.svg", 690, 200, *heads, *parts)


def policy() -> None:
    """From an observation to an action and a value."""
    save(
        "policy.svg",
        760,
        170,
        box(10, 60, 100, 44, GREY, "observation"),
        arrow((112, 82), (138, 82)),
        box(140, 60, 110, 44, ORANGE, "normaliser"),
        arrow((252, 82), (278, 82)),
        box(280, 60, 100, 44, BLUE, "encoder"),
        arrow((382, 82), (400, 82), (400, 42), (428, 42)),
        arrow((382, 82), (400, 82), (400, 122), (428, 122)),
        box(430, 20, 120, 44, BLUE, "policy's MLP"),
        box(430, 100, 120, 44, BLUE, "value's MLP"),
        arrow((552, 42), (588, 42)),
        arrow((552, 122), (588, 122)),
        box(590, 20, 160, 44, GREEN, "distribution, action"),
        box(590, 100, 160, 44, GREEN, "value"),
    )


def sequences() -> None:
    """Sequences of a rollout, and an end within one."""
    parts = []
    for t in range(16):
        x = 20 + 40 * t + 10 * (t // 4)
        parts.append(box(x, 50, 36, 36, RED if t == 9 else BLUE, "first" if t == 9 else f"{t}"))
    for i in range(4):
        x = 20 + 170 * i
        parts += [text(x + 78, 34, f"sequence {i}: seq_len 4"), arrow((x + 150, 106), (x, 106))]
        parts += [text(x + 78, 126, "gradients")]
    parts.append(text(420, 152, "the state is reset where an episode begins (first)"))
    save("sequences.svg", 720, 164, *parts)


def streams() -> None:
    """Two streams of rewards, one advantage."""
    save(
        "streams.svg",
        720,
        180,
        box(10, 20, 150, 50, BLUE, "rewards of", "the environment"),
        box(10, 105, 150, 50, ORANGE, "bonus for", "what is new"),
        arrow((162, 45), (208, 45)),
        arrow((162, 130), (208, 130)),
        box(210, 20, 180, 50, BLUE, "values, γ, λ", "advantages"),
        box(210, 105, 180, 50, ORANGE, "values, γ of its own", "advantages"),
        arrow((392, 45), (420, 45), (420, 88), (448, 88)),
        arrow((392, 130), (420, 130), (420, 88), (448, 88)),
        box(450, 62, 110, 50, GREEN, "weighted", "sum"),
        arrow((562, 88), (598, 88)),
        box(600, 62, 110, 50, GREY, "policy's", "update"),
    )


def symmetry() -> None:
    """Minibatches are mirrored."""
    save(
        "symmetry.svg",
        720,
        180,
        box(10, 62, 110, 50, BLUE, "minibatch"),
        arrow((122, 87), (150, 87), (150, 45), (178, 45)),
        arrow((122, 87), (150, 87), (150, 130), (178, 130)),
        box(180, 20, 170, 50, BLUE, "observations, actions"),
        box(180, 105, 170, 50, ORANGE, "mirrored observations,", "mirrored actions"),
        arrow((352, 45), (388, 45)),
        arrow((352, 130), (388, 130)),
        box(390, 20, 110, 50, BLUE, "policy, values"),
        box(390, 105, 110, 50, ORANGE, "policy, values"),
        arrow((502, 45), (530, 45), (530, 87), (558, 87)),
        arrow((502, 130), (530, 130), (530, 87), (558, 87)),
        box(560, 62, 150, 50, GREEN, "half of each loss,", "mirror loss"),
    )


def distillation() -> None:
    """A student acts, and a teacher labels."""
    save(
        "distillation.svg",
        720,
        180,
        box(10, 62, 120, 50, BLUE, "environment"),
        arrow((132, 87), (160, 87), (160, 45), (188, 45)),
        arrow((132, 87), (160, 87), (160, 130), (188, 130)),
        text(255, 14, "what a robot sees"),
        text(255, 174, "all that the simulator knows"),
        box(190, 20, 130, 50, GREEN, "student", "acts"),
        box(190, 105, 130, 50, ORANGE, "teacher", "is only asked"),
        arrow((322, 45), (378, 45)),
        arrow((322, 130), (378, 130)),
        box(380, 20, 130, 50, GREEN, "its distribution"),
        box(380, 105, 130, 50, ORANGE, "its distribution"),
        arrow((512, 45), (540, 45), (540, 87), (568, 87)),
        arrow((512, 130), (540, 130), (540, 87), (568, 87)),
        box(570, 62, 140, 50, GREY, "divergence", "is minimised"),
    )


def processes() -> None:
    """One process trains."""
    workers = [box(20, 20 + 42 * i, 150, 32, BLUE, f"environment {i}") for i in range(4)]
    lines = [arrow((172, 36 + 42 * i), (258, 98)) for i in range(4)]
    save(
        "processes.svg",
        700,
        200,
        *workers,
        *lines,
        box(260, 58, 180, 80, GREEN, "training:", "rollouts and updates", "one process"),
        arrow((442, 98), (498, 70)),
        arrow((442, 98), (498, 132)),
        box(500, 45, 180, 44, ORANGE, "run's directory"),
        box(500, 110, 180, 44, ORANGE, "MLflow, by a thread"),
    )


def forms() -> None:
    """Forms of a trained policy."""
    save(
        "forms.svg",
        720,
        200,
        box(10, 75, 120, 50, GREEN, "policy"),
        arrow((132, 100), (170, 100), (170, 40), (208, 40)),
        arrow((132, 100), (208, 100)),
        arrow((132, 100), (170, 100), (170, 162), (208, 162)),
        box(210, 18, 220, 44, BLUE, "policy file"),
        box(210, 78, 220, 44, BLUE, "MLflow model, with Everstep"),
        box(210, 140, 220, 44, BLUE, "without Everstep: MLflow,", "ONNX, torch.export"),
        arrow((432, 40), (478, 40)),
        arrow((432, 100), (478, 100)),
        arrow((432, 162), (478, 162)),
        box(480, 18, 230, 44, GREY, "Policy.load, everstep eval"),
        box(480, 78, 230, 44, GREY, "mlflow.pyfunc.load_model"),
        box(480, 140, 230, 44, GREY, "mlflow models serve,", "onnxruntime, PyTorch"),
    )


def rules() -> None:
    """An environment's adapter, trainer, policy."""
    save(
        "wrap.svg",
        740,
        130,
        box(
            *(10, 20, 170, 90, GREY),
            *("Gymnasium, EnvPool,", "ALE, TorchRL, JAX,", "PettingZoo, dm_control,"),
            "IsaacGym-style",
        ),
        arrow((182, 65), (218, 65)),
        box(220, 30, 130, 70, ORANGE, "adapter:", "rows, episode keys"),
        arrow((352, 65), (388, 65)),
        box(390, 30, 150, 70, BLUE, "Env: tensors", "[num_envs, …]"),
        arrow((542, 65), (578, 65)),
        box(580, 30, 150, 70, GREEN, "Trainer,", "evaluate"),
    )


def outputs() -> None:
    """Files that a run writes."""
    parts = [box(10, 70, 130, 50, GREEN, "a run")]
    for i, (name, use) in enumerate(
        {
            "config.yaml": "repeat the run",
            "metrics.jsonl": "statistics of every train step",
            "policy": "evaluate, use, export",
            "checkpoints/": "continue training",
        }.items()
    ):
        y = 8 + 46 * i
        parts += [arrow((142, 95), (180, 95), (180, y + 18), (218, y + 18))]
        parts += [box(220, y, 160, 36, BLUE, name), text(400, y + 23, use, anchor="start")]
    save("run.svg", 640, 196, *parts)


def resume() -> None:
    """A run that is killed, and goes on from its newest checkpoint."""
    parts = [text(20, 30, "killed in train step 6", anchor="start")]
    parts += [text(20, 130, "goes on", anchor="start")]
    for step in range(1, 6):
        parts.append(box(90 + 80 * step, 44, 70, 30, BLUE if step < 5 else GREY, f"line {step}"))
    for step in (2, 4):
        parts.append(box(90 + 80 * step, 84, 70, 26, GREEN, "checkpoint"))
    parts.append(box(570, 44, 70, 30, RED, "killed"))
    for step in range(5, 8):
        parts.append(box(90 + 80 * step, 134, 70, 30, BLUE, f"line {step}"))
    parts += [
        arrow((445, 112), (445, 149), (488, 149)),
        text(330, 134, "state and lines up to here"),
    ]
    save("resume.svg", 740, 180, *parts)


if __name__ == "__main__":
    for draw in (
        train_step,
        ends,
        autoreset,
        policy,
        sequences,
        streams,
        symmetry,
        distillation,
        processes,
        forms,
        rules,
        outputs,
        resume,
    ):
        draw()

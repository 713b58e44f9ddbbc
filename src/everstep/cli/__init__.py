"""Commands of the `everstep` program, one module each.

A command's module has the texts `HELP` and `DESCRIPTION`, `add_arguments(parser)`, which declares
its arguments, and `run(arguments)`, which returns the exit code. `everstep --help` imports every
module, so slow imports (PyTorch, pydantic, MLflow, rich) are made by the functions that need them.
"""

#: Names of the commands and of their modules, in the order of `everstep --help`.
COMMANDS = (
    "train",
    "resume",
    "init",
    "recipes",
    "reproduce",
    "tune",
    "eval",
    "watch",
    "plot",
    "compare",
    "video",
    "play",
    "report",
    "export",
    "publish",
    "check",
    "bench",
    "doctor",
)

"""Every name that the reference documents, with its parameters."""

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "names.json"
PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"


def modules() -> list[str]:
    """The modules of the reference."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md")))
    return sorted({"everstep", *re.findall(r"automodule:: (everstep\S*)", pages)})


def parameters(thing: Any) -> None | list[str]:
    """Parameters as `name`, with marks of their kind, and `=` where there is a default."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    marks = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "POSITIONAL_ONLY": "/"}
    return [
        f"{marks.get(p.kind.name, '')}{p.name}{'' if p.default is p.empty else '='}" for p in found
    ]


def documented() -> dict[str, None | list[str]]:
    """Parameters by dotted name; of classes, also those of their public methods.

    Methods that come from another documented class are listed there.
    """
    content = {module: importlib.import_module(module) for module in modules()}
    things = {
        f"{module}.{name}": getattr(content[module], name)
        for module in content
        for name in getattr(content[module], "__all__", ())
    }
    listed = {thing for thing in things.values() if inspect.isclass(thing)}
    found: dict[str, None | list[str]] = {}
    for path, thing in things.items():
        found[path] = parameters(thing) if callable(thing) else None
        for cls in thing.__mro__ if inspect.isclass(thing) else ():
            if cls.__module__.startswith("everstep") and (cls is thing or cls not in listed):
                for member, value in vars(cls).items():
                    if inspect.isfunction(value) and not member.startswith("_"):
                        found[f"{path}.{member}"] = parameters(getattr(thing, member))
    return found


def lost(kept: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Losses of a caller of the kept names; what is new is none."""
    wrong = [f"{name} is gone" for name in kept if name not in found]
    for name in kept.keys() & found.keys():
        before, now = kept[name] or [], found[name] or []
        missing = [p for p in before if p not in now and p.rstrip("=") + "=" not in now]
        added = [p for p in now if p not in before and p[0] != "*" and not p.endswith("=")]
        if missing or [p for p in added if p + "=" not in before and kept[name] is not None]:
            wrong.append(f"{name}({', '.join(now)}), was ({', '.join(before)})")
    return sorted(wrong)


def write() -> None:
    """Keep the names of now."""
    lines = (f"{json.dumps(k)}: {json.dumps(x)}" for k, x in sorted(documented().items()))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")

"""The directive `option-table`: a table of a class's options, from its signature and docstring."""

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from option_rows import options
from sphinx.util.docutils import SphinxDirective

from everstep.config import import_name


class OptionTable(SphinxDirective):
    """A table of the options of the class that the argument names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table."""
        table = ["| option | default | meaning |", "|---|---|---|"]
        for name, default, meaning in options(import_name(self.arguments[0])):
            table.append(f"| `{name}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |")
        container = nodes.Element()
        self.state.nested_parse(StringList(table, source="option-table"), 0, container)
        return container.children


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("option-table", OptionTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

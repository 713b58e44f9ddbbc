"""The directive `field-table`: a table of a dataclass's fields, made from its docstrings."""

from typing import Any, ClassVar

from dataclass_fields import dataclass_fields
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from everstep.config import import_name


class FieldTable(SphinxDirective):
    """A table of the fields of the dataclass that the argument names."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"except": directives.unchanged, "only": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The table."""
        left_out = self.options.get("except", "").split()
        only = self.options.get("only", "").split()
        rows = [
            (*(f"`{text}`" for text in field[:3]), field.description)
            for field in dataclass_fields(import_name(self.arguments[0]))
            if field.name not in left_out and (not only or field.name in only)
        ]
        table = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
        table += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in r)} |" for r in rows]
        container = nodes.Element()
        self.state.nested_parse(StringList(table, source="field-table"), 0, container)
        return container.children


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("field-table", FieldTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

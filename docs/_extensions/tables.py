"""The directives `field-table`, `option-table` and `statistics-table`: tables made from code."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from dataclass_fields import dataclass_fields
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from option_rows import options
from sphinx.util.docutils import SphinxDirective
from statistics_rows import statistics

from everstep.config import import_name


class Table(SphinxDirective):
    """A table whose rows a subclass gives."""

    #: Titles of the columns.
    columns: ClassVar[Sequence[str]]

    def rows(self) -> Iterator[Sequence[str]]:
        """Cells in Markdown, row by row."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """The table."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows()]
        table = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in x)} |" for x in lines]
        container = nodes.Element()
        self.state.nested_parse(StringList(table, source=self.name), 0, container)
        return container.children


class FieldTable(Table):
    """A table of the fields of the dataclass that the argument names, from its docstrings."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"except": directives.unchanged, "only": directives.unchanged}
    columns = ("key", "allowed", "default", "meaning")

    def rows(self) -> Iterator[Sequence[str]]:
        """A row for each field."""
        left_out = self.options.get("except", "").split()
        only = self.options.get("only", "").split()
        for field in dataclass_fields(import_name(self.arguments[0])):
            if field.name not in left_out and (not only or field.name in only):
                yield (*(f"`{text}`" for text in field[:3]), field.description)


class OptionTable(Table):
    """A table of the options of the class that the argument names, from signature and docstring."""

    required_arguments = 1
    columns = ("option", "default", "meaning")

    def rows(self) -> Iterator[Sequence[str]]:
        """A row for each parameter that has a default."""
        for name, default, meaning in options(import_name(self.arguments[0])):
            yield f"`{name}`", f"`{default}`", meaning


class StatisticsTable(Table):
    """A table of all statistics of a train step, with what `everstep.data` says about each."""

    columns = ("name", "meaning", "unit")

    def rows(self) -> Iterator[Sequence[str]]:
        """A row for each meaning."""
        for meaning, names in statistics().items():
            yield ", ".join(f"`{name}`" for name in names), meaning.text, meaning.unit


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("field-table", FieldTable)
    app.add_directive("option-table", OptionTable)
    app.add_directive("statistics-table", StatisticsTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

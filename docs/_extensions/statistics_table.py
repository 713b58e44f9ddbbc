"""The directive `statistics-table`: what `everstep.data` says about each statistic."""

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective
from statistics_rows import statistics


class StatisticsTable(SphinxDirective):
    """A table of all statistics of a train step."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        table = ["| name | meaning | unit |", "|---|---|---|"]
        for meaning, names in statistics().items():
            listed = ", ".join(f"`{name}`" for name in names)
            table.append(f"| {listed} | {meaning.text} | {meaning.unit} |")
        container = nodes.Element()
        self.state.nested_parse(StringList(table, source="statistics-table"), 0, container)
        return container.children


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("statistics-table", StatisticsTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

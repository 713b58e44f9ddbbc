"""The directive `command-reference`: a section for each command, made from its parser."""

from typing import Any

from command_sections import section
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from everstep.__main__ import command_parsers


class CommandReference(SphinxDirective):
    """A heading, the description and the arguments of each command.

    A line of the content, `train: [Configuration](configuration.md)`, has the pages to read about
    that command.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The sections."""
        parsers = command_parsers()
        pages = dict(line.split(": ", 1) for line in self.content if line.strip())
        if unknown := pages.keys() - parsers.keys():
            raise self.error(
                f"No command of this name is installed: {', '.join(sorted(unknown))}. Correct the "
                f"name, or install Everstep: its commands are entry points."
            )
        lines = []
        for name, parser in parsers.items():
            lines += [f"## {name}", "", *section(parser)]
            lines += ["", f"See {pages[name]}.", ""] if name in pages else [""]
        container = nodes.Element()
        text = StringList(lines, source="command-reference")
        self.state.nested_parse(text, 0, container, match_titles=True)
        return container.children


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

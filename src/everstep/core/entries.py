"""Lists in a file whose entries name a class, with its options: callbacks and loggers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError
from .names import Kind, import_kind
from .shown import named
from .validation import binds, signature_of


class Entries(NamedTuple):
    """A list whose entries are objects, dotted class names, or mappings `{name: options}`.

    Attributes:
        key: The list's key.
        methods: Methods that each object must have.
        what: What an entry is, for errors, such as "a callback".
        base: What a user can write instead, for errors, such as "a subclass of `Callback`".

    """

    key: str
    methods: tuple[str, ...]
    what: str
    base: str

    def check(self, entry: Any) -> tuple[Any, dict[str, Any]]:
        """The object or the class of an entry, and the class's options. Calls nothing.

        Raises:
            ConfigError: If it is neither, or the class does not take the options.

        """
        options: Any = {}
        if isinstance(entry, Mapping) and len(entry) == 1:
            [(entry, options)] = entry.items()
            options = {} if options is None else options
        if isinstance(entry, str):
            has_methods = lambda cls: not self._missing(cls)  # noqa: E731
            entry = import_kind(entry, Kind(f"the dotted name of {self.base}", has_methods))
        if not isinstance(options, Mapping):
            raise ConfigError(f"`{self.key}`: expected a mapping of options; got {options!r}.")
        if missing := self._missing(entry):
            raise ConfigError(
                f"`{self.key}`: expected {self.what}, or the dotted name of its class; got "
                f"{named(entry)}, which has no `{missing[0]}`. Write {self.base}."
            )
        if isinstance(entry, type) and not binds(signature_of(entry), **options):
            taken = f"{entry.__qualname__}{signature_of(entry)}"
            raise ConfigError(f"`{self.key}`: {taken} does not take {dict(options)!r}.")
        return entry, dict(options)

    def make(self, entry: Any) -> Any:
        """The object of an entry; an object is returned as it is.

        Raises:
            ConfigError: If the entry has none of these forms, or the class refuses the options.

        """
        entry, options = self.check(entry)
        if isinstance(entry, type):
            try:
                entry = entry(**options)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"`{self.key}`: {entry.__qualname__}: {error}.") from None
        return entry

    def _missing(self, entry: Any) -> list[str]:
        return [name for name in self.methods if not callable(getattr(entry, name, None))]

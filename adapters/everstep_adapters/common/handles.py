"""Objects that stand for processes, or for a library's own memory, which have no copies."""

from typing import Any, SupportsIndex

from everstep.errors import AdapterError


class Handle:
    """Base of objects that are neither copied nor pickled where they are a handle of something.

    Copies of pipes and sockets would close those of the original.
    """

    #: What it is a handle of; empty if all of it is in Python's memory.
    handle_of: Any = ""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """The parts from which `copy` and `pickle` make another one.

        Raises:
            AdapterError: If it is a handle.

        """
        if what := self.handle_of:
            raise AdapterError(
                f"A {type(self).__name__} cannot be copied or pickled: it is the handle of {what}. "
                "Make another environment where one is needed, as by `everstep.make`, and pass on "
                "a function that makes it."
            )
        return super().__reduce_ex__(protocol)

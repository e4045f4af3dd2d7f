"""Changed copies of large frozen values.

`dataclasses.replace` sets each field by itself, and a frozen class checks each of them. The state of a job and of an
agent has dozens of fields, and nearly every event changes one or two. So these classes have no slots: their fields lie
in one dictionary, which `change` copies at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["change"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import replace as change
else:

    def change(value: T, /, **fields: Any) -> T:
        """Like `dataclasses.replace`, for a dataclass without slots and without `__post_init__`."""
        twin = object.__new__(type(value))
        twin.__dict__.update(value.__dict__)
        twin.__dict__.update(fields)
        return twin

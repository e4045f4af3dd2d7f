"""The version of the protocol between clients and coordinators, and which versions work together.

Every request and every answer names the version of its sender. A version can read what the previous versions back to
`OLDEST` send, and it can read what newer versions send, except for what they added:

- A release that adds a field, a route or an event raises `VERSION`. The field has a default, so a message without it is
  complete. A coordinator ignores unknown fields of a newer client. A client ignores unknown fields of a newer
  coordinator, and skips unknown events with a warning.
- A release that changes or removes anything, requires a new field, or adds a value to an enum, raises `OLDEST` as well.
  Older clients and coordinators are then refused, with a message that names the side to upgrade.

`tests/compat` has the protocol of each version, and fails if the code no longer fits it.
"""

from __future__ import annotations

import re

VERSION = 1
OLDEST = 1

_NUMBER = re.compile("[0-9]{1,6}")


def parse_version(text: str) -> int | None:
    """Return the version in a header; None if it is not one."""
    return int(text) if _NUMBER.fullmatch(text) else None


def is_newer(version: int | None) -> bool:
    """Return whether the sender may know fields that this version does not."""
    return version is not None and version > VERSION


def describe_old_client(version: int) -> str:
    """Return why a coordinator refuses a client of a version; empty if it does not."""
    if version >= OLDEST:
        return ""
    return (
        f"this coordinator needs clients with protocol {OLDEST} or newer, and yours has {version}: upgrade Pliant on "
        "the client's machine"
    )


def describe_old_coordinator(version: int) -> str:
    """Return why a client refuses a coordinator of a version; empty if it does not."""
    if version >= OLDEST:
        return ""
    return (
        f"the coordinator there has protocol {version}, and this Pliant needs {OLDEST} or newer: upgrade Pliant on "
        "the coordinator's machine"
    )

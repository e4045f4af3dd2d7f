"""Notices that this machine is going to be taken away.

`clouds` and `local` have the sources, `threads` the threads that poll them. To add a source, write a class with `name`,
`pause_s` and `look`, and add it to `KINDS`.

    Notices(["aws", "file:/run/going"], on_notice, complain).start()
"""

from pliant.agent.notices.base import Notice, Trouble, Watcher
from pliant.agent.notices.threads import KINDS, Notices, watchers

__all__ = ["KINDS", "Notice", "Notices", "Trouble", "Watcher", "watchers"]

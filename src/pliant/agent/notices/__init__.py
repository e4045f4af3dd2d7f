"""Notices that this machine is going to be taken away, from wherever its owner says so.

What may live here: one file for each way of hearing (`clouds`, `local`), and the threads that listen. To add a way,
write a class with `name`, `pause_s` and `look`, and put it into `KINDS`.

    Notices(["aws", "file:/run/going"], heard, complain).start()
"""

from pliant.agent.notices.base import Notice, Trouble, Watcher
from pliant.agent.notices.threads import KINDS, Notices, watchers

__all__ = ["KINDS", "Notice", "Notices", "Trouble", "Watcher", "watchers"]

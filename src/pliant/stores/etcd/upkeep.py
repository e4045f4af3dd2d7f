"""Compaction of etcd, and the check of its space.

etcd keeps every old revision of a key until it is told to forget them, and by default no one tells it. The holder does
so, every few minutes and up to the revision of a few minutes before, as Kubernetes does. A reader that needs an older
revision meanwhile reads again.
"""

from __future__ import annotations

import logging
import threading
import time

from pliant.errors import StoreError
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.errors import Compacted

__all__ = ["COMPACT_EVERY_S", "FULL_SHARE", "Upkeep"]

log = logging.getLogger(__name__)

COMPACT_EVERY_S = 300.0
QUOTA_BYTES = 2 << 30  # etcd's default, for versions that do not report theirs
FULL_SHARE = 0.7


class Upkeep:
    """The regular work of a holder, in a thread of its own: a renewal does not wait for it."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._next_s = time.monotonic() + COMPACT_EVERY_S
        self._revision = 0  # of the cluster, at the last run
        self._thread: threading.Thread | None = None

    def start_if_due(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + COMPACT_EVERY_S
            self._thread = threading.Thread(target=self.run, name="etcd upkeep", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the end of a run, which takes two requests at the most."""
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Compact up to the revision of the last run, and check the space. Failures are logged and tried again."""
        before, self._revision = self._revision, self._client.revision
        try:
            if before:
                self._client.compact(before)
        except Compacted:
            pass  # etcd, or another of its clients, was faster
        except StoreError as error:
            log.warning("etcd could not be compacted: %s", error)
        try:
            self.check_space()
        except StoreError as error:
            log.warning("The space of etcd could not be read: %s", error)

    def check_space(self) -> None:
        """Log a warning if etcd has raised an alarm or is nearly full."""
        status = self._client.status()
        quota = status.quota or QUOTA_BYTES
        for alarm in status.errors:
            log.warning("etcd at %s reports: %s", self._client.place, alarm)
        if status.size > quota * FULL_SHARE:
            log.warning(
                "etcd at %s has %d MB (%d MB in use), and at its quota (%s%d MB) it stops all writes. Delete old jobs "
                "and run `etcdctl defrag`, or raise the quota.",
                self._client.place,
                status.size // 1_000_000,
                status.size_in_use // 1_000_000,
                "" if status.quota else "by default ",
                quota // 1_000_000,
            )

"""The submissions of a store: one record, which the leader changes after the decisions of `core.submissions`."""

from __future__ import annotations

from collections.abc import Callable

from pliant.core import submissions as s
from pliant.core.messages.rejection import Rejection
from pliant.errors import StoreUnavailable
from pliant.stores.base import Store, Write, Written
from pliant.wire.codec import decode_state, encode_state

STREAM = "@submissions"
TRIES = 4


class SubmissionRegistry:
    """Submissions as last read, for images that match one of the patterns. Without patterns it is closed.

    The methods call the store; the server calls them in one thread. `status` is in memory only: the operator writes it
    again after a restart.
    """

    def __init__(self, store: Store, images: tuple[str, ...]) -> None:
        self._store = store
        self.images = images
        self.known = s.Submissions()
        self.status: dict[int, str] = {}  # by number: the operator's words about the job
        self._revision = 0

    def load(self) -> None:
        """Read the submissions from the store."""
        stored = self._store.read(STREAM)
        if stored is not None:
            self.known, self._revision = decode_state(stored.record, s.Submissions), stored.revision

    def refresh(self) -> None:
        """Read what another coordinator changed while it led."""
        if self._store.events(STREAM, self._revision, 1):
            self.load()

    def change(
        self, decide: Callable[[s.Submissions], s.StoredSubmission | Rejection]
    ) -> s.StoredSubmission | Rejection:
        """Store the entry that `decide` returns, unless it is there already. A rejection changes nothing."""
        self.refresh()
        for _ in range(TRIES):
            entry = decide(self.known)
            if isinstance(entry, Rejection) or entry in self.known.entries:
                return entry
            after = s.with_entry(self.known, entry)
            write = Write(STREAM, self._revision, (encode_state(entry),), encode_state(after))
            (outcome,) = self._store.write([write])
            if isinstance(outcome, Written):
                self.known, self._revision = after, outcome.revision
                numbers = {each.number for each in after.entries}
                self.status = {number: text for number, text in self.status.items() if number in numbers}
                return entry
            self.load()  # another coordinator was faster
        raise StoreUnavailable("Other coordinators kept changing the submissions; try again.")

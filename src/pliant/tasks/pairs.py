"""Pair averaging: each worker trains a model of its own, and averages it with the model of one other worker per step.

`pliant.core.tasks.pairs` decides; this module reads and writes arrays. The training thread steps, averages and
publishes a copy of its model. One thread fetches the copy of the next partner meanwhile. Another one loads saved means
and, on the oldest member, saves them. No member waits for another one.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.tasks.model import ModelPeers
from pliant.core.tasks.pairs import CopyFacts, SavePace, partner_of, savable, saves
from pliant.errors import BadInput, PliantError
from pliant.tasks.means import Array, new_name, read_mean, remove_before, write_mean
from pliant.train.checkpoint.storage import Storage
from pliant.train.peer.framing import DamagedFrame
from pliant.train.peer.server import PeerLost, PeerServer, RequestRefused
from pliant.train.state.transfer import decode_head
from pliant.wire.views import PeerKey

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

SAVE_EVERY_S = 10.0
FETCH_S = 10.0  # limit for the model of another member
RETRY_S = 1.0
STORAGE_PATIENCE_S = 30.0  # a first mean that cannot be read for so long ends the worker
END_PATIENCE_S = 60.0
KIND = "model"

_facts = msgspec.msgpack.Decoder(CopyFacts)


class AveragedModel(Protocol):
    """A model whose arrays are averaged. `pliant.torch.pairs.ModelArrays` is one."""

    def read(self) -> list[Array]:
        """Return the arrays, in an order that is the same on all workers. They may be written to until `write`."""

    def write(self, arrays: list[Array]) -> None:
        """Set the arrays."""


class WritableArrays:
    """A model that is a list of arrays, written in place."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._arrays = list(arrays)

    def read(self) -> list[Array]:
        return self._arrays

    def write(self, arrays: list[Array]) -> None:
        for own, new in zip(self._arrays, arrays, strict=True):
            if own is not new:
                own[...] = new


def averaged_model(given: AveragedModel | Sequence[Array]) -> AveragedModel:
    """Return the model of an argument `average=`. Raises BadInput if its arrays cannot be averaged."""
    model = WritableArrays(given) if isinstance(given, Sequence) else given
    arrays: Sequence[object] = model.read()
    if not arrays or not all(isinstance(each, np.ndarray) and each.dtype.kind == "f" for each in arrays):
        raise BadInput("average must have arrays of floating point numbers, as numpy arrays that can be written.")
    return model


def model_terms(model: AveragedModel) -> tuple[tuple[str, str], ...]:
    """Return the shape of a model as a term that every worker must have equal."""
    shapes = [(list(each.shape), each.dtype.str) for each in model.read()]
    digest = hashlib.sha256(msgspec.msgpack.encode(shapes)).hexdigest()[:16]
    return (("average", f"{len(shapes)} arrays ({digest})"),)


class Averaging(Protocol):
    """Averaging, as a run sees it. All methods are called in the training thread."""

    def begin(self) -> None:
        """Wait for the model to begin with; return early if this member must leave."""

    def average(self) -> None:
        """Average the model after a step, and publish it."""

    def finish(self) -> None:
        """Set the model to the mean that the job ended with."""


class NoPartners:
    """The averaging of a worker without a coordinator: its model is the mean."""

    def begin(self) -> None:
        """Begin with the model as it is."""

    def average(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Leave the model as it is."""


class UnsavedShards(Protocol):
    """The queue, as far as averaging is concerned."""

    @property
    def unsaved(self) -> tuple[int, ...]:
        """The attempts that this member processed and holds until they are saved."""

    @property
    def waits(self) -> bool:
        """True if the training thread waits for a shard."""

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until it is ready, as of a `wake`, or this member must leave."""

    def wake(self) -> None:
        """Let waits check again, and a wait for a shard call `on_wake`."""

    def save(self, number: int, name: str, attempts: tuple[int, ...]) -> None:
        """Report a save, and wait for its answer."""


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    version: int
    base: int
    arrays: list[Array]


@dataclass(frozen=True, slots=True)
class LoadedMean:
    number: int
    arrays: list[Array]


class _Limit:
    """Cancels a request at the end of a time, or when this member closes."""

    def __init__(self, closed: threading.Event, limit_s: float) -> None:
        self._closed, self._ends_at = closed, time.monotonic() + limit_s

    def is_set(self) -> bool:
        return self._closed.is_set() or time.monotonic() >= self._ends_at

    def wait(self, timeout: float) -> bool:
        return self._closed.wait(timeout) or self.is_set()


class PairAveraging:
    """One member's averaging. Its `address` goes into the join; `follow` receives each view.

    No lock of the queue is taken while `_changed` is held.
    """

    def __init__(
        self,
        model: AveragedModel,
        me: MemberId,
        seed: int,
        storage: Storage,
        save_every_s: float,
        host: str,
        tls: PeerTls | None,
    ) -> None:
        self._model, self._me, self._seed, self._storage = model, me, seed, storage
        self._initial = [each.copy() for each in model.read()]  # until there is a mean
        self._like = [np.empty_like(each) for each in self._initial]  # its memory is never used
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._peers: ModelPeers | None = None
        self._ended = False
        self._copy: PublishedCopy | None = None
        self._mean: LoadedMean | None = None  # not averaged with yet
        self._loaded = 0  # the number of the newest mean that was loaded
        self._failure: PliantError | None = None
        self._partner: tuple[int, MemberId] | None = None  # to fetch a copy from
        self._fetched: list[Array] | None = None
        self._steps = 0
        self._stored_at = time.monotonic()  # when the storage was used last
        self.averaged = 0  # steps with a partner's model
        self._pace = SavePace(save_every_s, time.monotonic())
        self._server = PeerServer(host, me, lambda *_: None, self._answer, tls)
        self.address = self._server.address
        self._threads = [
            threading.Thread(target=act, name=f"pliant-{name}", daemon=True)
            for name, act in (("pairs", self._fetch_loop), ("means", self._mean_loop))
        ]

    def start(self, queue: UnsavedShards) -> None:
        """Start the threads, before this member joins."""
        self._queue = queue
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._server.close()
        for thread in self._threads:
            thread.join()
        log.info("%d of %d steps averaged with another model", self.averaged, self._steps)

    def follow(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """Take a new view of the job."""
        peers = view.model_peers
        if peers is None:
            return
        for key in keys:
            if key.generation == peers.number:
                addresses = dict(zip(peers.members, peers.addresses, strict=True))
                self._server.add_generation(peers.number, key.key, addresses)
                self._server.forget_below(peers.number)
        with self._changed:
            self._peers, self._ended = peers, view.state.ended
            self._changed.notify_all()

    # -------------------------------------------------------------------------------- the training thread

    def begin(self) -> None:
        self._queue.wait_for(lambda: self._mean is not None or self._failure is not None)
        self._require_means()
        with self._changed:
            mean, self._mean = self._mean, None
        if mean is not None:
            self._model.write([each.copy() for each in mean.arrays])
            self._publish(self._model.read(), mean.number)

    def average(self) -> None:
        self._require_means()
        arrays = self._model.read()
        if not _are_finite(arrays):
            raise PliantError(f"the model of {self._me} is not finite: it was not averaged with others")
        self._steps += 1
        with self._changed:
            mean, self._mean = self._mean, None
            fetched, self._fetched = self._fetched, None
        if mean is not None:
            self._average_with(arrays, mean.arrays, mean.number)
        elif fetched is not None:
            self.averaged += 1
            self._average_with(arrays, fetched)
        else:
            self._publish(arrays)
        with self._changed:
            chosen = None if self._peers is None else partner_of(self._peers, self._me, self._seed, self._steps)
            if self._peers is not None and chosen is not None:
                self._partner = (self._peers.number, chosen)
                self._changed.notify_all()

    def on_wake(self) -> None:
        """Average with a new mean while there is no shard to train on."""
        self._require_means()
        with self._changed:
            mean, self._mean = self._mean, None
            self._changed.notify_all()  # a save may be due, now that this member has nothing else to do
        if mean is not None:
            self._average_with(self._model.read(), mean.arrays, mean.number)

    def finish(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, END_PATIENCE_S)
            peers = self._peers
        if peers is None or not self._ended:
            raise PliantError(f"the coordinator sent no final model within {END_PATIENCE_S:g} s")
        try:
            self._model.write(read_mean(self._storage, peers.saved, self._like))
        except OSError as error:
            raise PliantError(f"the final model cannot be read: {error}") from error

    def _require_means(self) -> None:
        """Raise if means are not loaded and saved any more: the shards of this member would never be done."""
        if self._failure is not None:
            raise self._failure

    def _average_with(self, arrays: list[Array], theirs: list[Array], base: int | None = None) -> None:
        """Move the model half of the way from the copy published last, so that the own step keeps its full length."""
        assert self._copy is not None  # `begin` published one
        for own, other, published in zip(arrays, theirs, self._copy.arrays, strict=True):
            own[...] += (other - published) * own.dtype.type(0.5)
        self._model.write(arrays)
        self._publish(arrays, base)

    def _publish(self, arrays: list[Array], base: int | None = None) -> None:
        before = self._copy
        version, base_before = (0, 0) if before is None else (before.version, before.base)
        copy = PublishedCopy(version + 1, base_before if base is None else base, [each.copy() for each in arrays])
        with self._changed:
            self._copy = copy

    # ------------------------------------------------------------------------------- the models of others

    def _facts_of_own(self) -> tuple[CopyFacts, PublishedCopy] | None:
        """Return the published copy. The attempts are read before it: a copy has all that were processed by then."""
        attempts = self._queue.unsaved
        with self._changed:
            copy = self._copy
        return None if copy is None else (CopyFacts(copy.version, copy.base, attempts), copy)

    def _answer(self, number: int, asker: MemberId, kind: str, head: bytes) -> tuple[bytes, Iterable[memoryview]]:  # noqa: ARG002 - as the server calls it
        known = decode_head(head, int)
        found = self._facts_of_own()
        if kind != KIND or found is None or found[0].version <= known:
            raise RequestRefused("there is no newer model")
        facts, copy = found
        return msgspec.msgpack.encode(facts), [_bytes_of(each) for each in copy.arrays]

    def _fetch(self, number: int, member: MemberId, known: int) -> tuple[CopyFacts, list[Array]] | None:
        """Return a copy of a member's model that is newer than a known version; None if there is none in time."""
        limit = _Limit(self._closed, FETCH_S)
        arrays = [np.empty_like(each) for each in self._like]
        try:
            with self._server.request(number, member, KIND, msgspec.msgpack.encode(known), limit) as reply:
                if reply.length != sum(each.nbytes for each in arrays):
                    raise DamagedFrame(f"the model of {member} has {reply.length} bytes")
                for each in arrays:
                    reply.readinto(_bytes_of(each))
                return _facts.decode(reply.head), arrays
        except (PeerLost, RequestRefused, BadInput, msgspec.DecodeError) as error:
            log.debug("no model of %s: %s", member, error)
            return None

    def _fetch_loop(self) -> None:
        """Fetch the copies of partners. A copy is averaged with once: a member that hangs must not hold others back."""
        versions: dict[MemberId, int] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._partner is not None or self._closed.is_set())
                if self._closed.is_set() or self._partner is None:
                    return
                number, member = self._partner
            found = self._fetch(number, member, versions.get(member, 0))
            with self._changed:
                self._partner = None
                if found is not None:
                    versions[member] = found[0].version
                    self._fetched = found[1]

    # ------------------------------------------------------------------------------------------ saved means

    def _mean_loop(self) -> None:
        while not self._closed.is_set():
            waits = self._queue.waits
            with self._changed:
                peers = self._peers
                wait_s = self._next_in_s(peers, waits=waits)
                if wait_s is None or wait_s > 0.0:
                    self._changed.wait(wait_s)
                    continue
            assert peers is not None
            try:
                if peers.saves > self._loaded:
                    self._load(peers)
                else:
                    self._save(peers)
            except OSError as error:
                self._storage_failed(error)
            except PliantError as error:
                self._fail(error)
                return
            else:
                self._stored_at = time.monotonic()

    def _next_in_s(self, peers: ModelPeers | None, *, waits: bool) -> float | None:
        """Return how long to wait before a mean is loaded or saved; None: until something changes."""
        if peers is None or self._ended:
            return None
        if peers.saves > self._loaded:
            return 0.0
        if not saves(peers, self._me):
            return None
        return self._pace.due_in_s(time.monotonic(), waits=waits) if peers.saves else 0.0

    def _storage_failed(self, error: OSError) -> None:
        """Try again soon; a member that has no mean yet gives up at some time, and leaves."""
        why = f"{self._storage.location} cannot be used: {error}"
        log.warning("%s; trying again", why)
        if self._loaded == 0 and time.monotonic() > self._stored_at + STORAGE_PATIENCE_S:
            self._fail(PliantError(f"{why}. All workers of the job need one folder, see --checkpoint-dir."))
        self._closed.wait(RETRY_S)

    def _fail(self, error: PliantError) -> None:
        log.error("%s", error.why)
        self._failure = error
        self._queue.wake()

    def _load(self, peers: ModelPeers) -> None:
        """Load the newest mean."""
        mean = LoadedMean(peers.saves, read_mean(self._storage, peers.saved, self._like))
        with self._changed:
            self._mean, self._loaded = mean, mean.number
        self._initial = []
        self._queue.wake()

    def _save(self, peers: ModelPeers) -> None:
        """Save the mean of all models that were averaged with the mean before; at first, the model of this member."""
        mean: list[Array] = self._initial
        attempts: tuple[int, ...] = ()
        if peers.saves:
            found = self._collect(peers)
            chosen, attempts = savable(peers, [facts for facts, _ in found])
            if not attempts:
                self._pace.tried(time.monotonic(), saved=False)
                return
            mean = _mean_of([found[at][1] for at in chosen])
        number = peers.saves + 1
        name = new_name(number)
        write_mean(self._storage, name, mean)
        self._queue.save(number, name, attempts)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed.is_set() or (self._peers is not None and self._peers.saves >= number), FETCH_S
            )
        self._pace.tried(time.monotonic(), saved=True)
        remove_before(self._storage, number - 1)

    def _collect(self, peers: ModelPeers) -> list[tuple[CopyFacts, list[Array]]]:
        """Return the copies of this member and of all others that answer."""
        own = self._facts_of_own()
        found = [] if own is None else [(own[0], own[1].arrays)]
        for member in peers.members:
            if member != self._me and (other := self._fetch(peers.number, member, 0)) is not None:
                found.append(other)
        return found


def _mean_of(models: Sequence[list[Array]]) -> list[Array]:
    total = [each.copy() for each in models[0]]
    for model in models[1:]:
        for own, other in zip(total, model, strict=True):
            own[...] += other
    for own in total:
        own[...] *= own.dtype.type(1.0 / len(models))
    return total


def _are_finite(arrays: Sequence[Array]) -> bool:
    with np.errstate(all="ignore"):
        return all(np.isfinite(each.sum(dtype=np.result_type(each.dtype, np.float32))) for each in arrays)


def _bytes_of(array: Array) -> memoryview:
    view: Any = array.reshape(-1).view(np.uint8).data
    return memoryview(view)

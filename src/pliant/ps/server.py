"""A parameter server: it serves its buckets to workers, and keeps the backups of its buckets equal to them.

One lock keeps the order of updates: a primary applies and sends them while it holds it. Another lock guards the copies,
and nothing is sent while it is held. A server needs only the second one to apply updates of another primary, so no two
servers wait for each other, and a pull waits for no connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, BucketLayout
from pliant.errors import BadInput
from pliant.ps import wire as w
from pliant.ps.copies import BucketRoles, enter_roles, split_by_digests
from pliant.ps.dialing import dial, request
from pliant.ps.listener import TableListener
from pliant.ps.routes import Ticket, UpdateRoute
from pliant.ps.saving import LAST, TableSet, TableStorage
from pliant.ps.tables.hashing import Buckets, buckets_of
from pliant.ps.tables.spec import check_tables
from pliant.ps.tables.table_copy import Mask, StaleUpdate, TableCopy, Update
from pliant.train.peer.framing import DamagedFrame, PeerConnection, PeerLost

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

PIECE_SIZE = 1 << 20  # bytes that are copied at once, while pushes wait; at least one bucket
COMPACTED_ROWS = 4096  # moved at once, while pulls and pushes wait
PAUSE_S = 0.001  # between two of these moves
RETRY_S = 0.1

Reply = tuple[w.Reply, list[w.Array]]
ToBackup = w.PushRows | w.CopyTables | w.CompareBuckets | w.InstallBuckets


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The newest layout that the coordinator sent."""

    layout: BucketLayout
    key: bytes
    history: int


class _Superseded(Exception):
    """A newer layout arrived, or the server closes."""


class ParameterServer:
    """One server. Create it before it joins, since the join sends its address; then pass each layout to `follow`.

    `on_copied(layout)` is called when all copies that a layout orders are filled.
    """

    def __init__(
        self,
        host: str,
        me: MemberId,
        on_copied: Callable[[int], None],
        storage: TableStorage | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self.me = me
        self._on_copied, self._storage, self._tls = on_copied, storage, tls
        self._copies = TableCopy()
        self._changed = threading.Condition(threading.Lock())  # guards the order of updates, routes and open buckets
        self._copies_lock = threading.Lock()  # taken after the one before, if both are needed
        self._number, self._key = 0, b""
        self._history = 0
        self._roles: BucketRoles | None = None
        self._open: Mask = np.zeros(BUCKETS, np.bool_)
        self._routes: dict[int, UpdateRoute] = {}
        self._news = threading.Condition()  # guards what the layout thread has to do
        self._wanted: _Wanted | None = None
        self._unconnected: set[int] = set()
        self._unfilled: set[int] = set()
        self._reported = 0
        self._closing = False
        self._listener = TableListener(host, me, self._key_of, self._serve, tls)
        self.address = self._listener.address
        self._thread = threading.Thread(target=self._follow_layouts, name="pliant-layouts", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ for the process

    def follow(self, layout: BucketLayout, key: bytes, history: int) -> None:
        """Enter a layout in the background. Earlier ones are ignored."""
        with self._news:
            if self._wanted is None or layout.number > self._wanted.layout.number:
                self._wanted = _Wanted(layout, key, history)
                self._news.notify_all()
                self._interrupt_copies()

    def _interrupt_copies(self) -> None:
        """Let a copy fail whose receiver takes no bytes: it is sent under the lock that pushes need."""
        for route in list(self._routes.values()):
            route.interrupt()

    def workers(self) -> set[MemberId]:
        """Return the connected members that are not servers."""
        roles = self._roles
        return self._listener.callers() - set(roles.layout.ids if roles is not None else ())

    def close(self) -> None:
        """Stop serving. The copies stay in memory for `save`."""
        with self._news:
            self._closing = True
            self._news.notify_all()
            self._interrupt_copies()
        self._thread.join()
        self._listener.close()
        with self._changed:
            self._number = 0
            self._close_routes()
            self._changed.notify_all()

    def take_over(self, layout: BucketLayout, history: int) -> None:
        """Have the buckets of a newer layout after `close`, so that all servers save under the same one."""
        with self._changed, self._copies_lock:
            if self._roles is None or layout.number > self._roles.layout.number:
                self._change_roles(BucketRoles(layout, self.me), history)

    def is_saved(self, number: int = LAST) -> bool:
        """Return whether all servers of the layout have written their part of a checkpoint, or there is no storage."""
        with self._changed:
            roles, history = self._roles, self._history
        if self._storage is None or roles is None:
            return True
        wanted = TableSet(history, roles.layout.number, number)
        return any(found == wanted for found, _ in self._storage.sets(history))

    def save(self, number: int = LAST, layout_asked: int | None = None) -> bool:
        """Write this server's part of a checkpoint.

        False if there is no storage, it holds nothing, or the layout is another one than asked for.
        """
        with self._changed:
            roles, history = self._roles, self._history
            if self._storage is None or roles is None or roles.layout.index(self.me) < 0:
                return False
            if layout_asked not in (None, roles.layout.number):
                return False
            with self._copies_lock:
                copy = self._copies.extract(np.flatnonzero(roles.primary))
        layout = roles.layout
        index, count = layout.index(self.me), len(layout.servers)
        self._storage.write(TableSet(history, layout.number, number), index, count, self.me, copy)
        return True

    def save_everywhere(self, number: int) -> None:
        """Write a checkpoint on all servers of the layout, and remove old ones. Raises OSError or PeerLost."""
        with self._changed:
            roles, key, history = self._roles, self._key, self._history
        if roles is None or self._storage is None:
            return
        layout = roles.layout
        if not self.save(number, layout.number):
            raise PeerLost(f"layout {layout.number} ended")
        try:
            for at, server in enumerate(layout.servers):
                if server.id != self.me:
                    self._request_save(layout, key, at, number)
        except _Superseded:
            raise PeerLost(f"layout {layout.number} ended") from None
        self._storage.remove_old(history)

    def _request_save(self, layout: BucketLayout, key: bytes, at: int, number: int) -> None:
        connection = dial(layout, key, self.me, at, self._check(layout.number), self._tls)
        try:
            request(connection, w.SaveTables(number))
        finally:
            connection.close()

    # ------------------------------------------------------------------------------------------------- layouts

    def _check(self, number: int) -> Callable[[], None]:
        def check() -> None:
            if self._closing or self._wanted is None or self._wanted.layout.number != number:
                raise _Superseded

        return check

    def _follow_layouts(self) -> None:
        failed = False
        while True:
            with self._news:
                if failed:
                    self._news.wait(RETRY_S)
                else:
                    self._news.wait_for(self._has_work)
                if self._closing:
                    return
                wanted = self._wanted
            if wanted is None:
                continue
            try:
                if wanted.layout.number != self._number:
                    self._enter(wanted)
                failed = self._connect_all(wanted)
            except _Superseded:
                failed = False
            except Exception:  # why: without this thread the server would follow no layout any more
                log.exception("layout %d could not be entered; trying again", wanted.layout.number)
                failed = True

    def _has_work(self) -> bool:
        if self._closing or self._unconnected or self._unfilled:
            return True
        return self._wanted is not None and self._wanted.layout.number != self._number

    def _enter(self, wanted: _Wanted) -> None:
        """Stop serving the layout before, and take over the buckets of this one."""
        with self._changed:
            self._open[:] = False
            self._close_routes()
            with self._copies_lock:
                self._number = 0  # until all buckets are here, nothing is served
            self._changed.notify_all()
        self._listener.end_before(wanted.layout.number)
        roles = BucketRoles(wanted.layout, self.me)
        with self._changed, self._copies_lock:
            begun = self._change_roles(roles, wanted.history)
            self._key = wanted.key
            self._number = wanted.layout.number
            self._reported = 0
            self._reopen(roles)
            with self._news:
                self._unconnected, self._unfilled = set(roles.backups()), set(roles.receivers())
        log.info(
            "layout %d: %d buckets served, %d of them new here, %d kept for other servers",
            self._number,
            roles.primary.sum(),
            begun,
            roles.backup.sum(),
        )

    def _change_roles(self, roles: BucketRoles, history: int) -> int:
        """Take over buckets; return how many of them are new here. The caller holds both locks."""
        begun = enter_roles(self._copies, roles, lambda missing: self._restore(history, missing))
        self._roles, self._history = roles, history
        return begun

    def _reopen(self, roles: BucketRoles) -> None:
        """Open the buckets whose other copies keep up, and close the others. The caller holds the lock."""
        followed = {server: route.followed.mask for server, route in self._routes.items()}
        self._open = roles.open_buckets(followed, reported=self._reported == self._number)
        self._changed.notify_all()

    def _are_filled(self, roles: BucketRoles) -> bool:
        return roles.are_filled({server: route.followed.arrived for server, route in self._routes.items()})

    def _restore(self, history: int, missing: Mask) -> list[dict[str, Any]]:
        return [] if self._storage is None else self._storage.restore(history, missing)

    def _close_routes(self) -> None:
        for route in self._routes.values():
            route.close()
        self._routes = {}

    def _connect_all(self, wanted: _Wanted) -> bool:
        """Connect to backups, then fill copies, as far as possible. Return whether something must be tried again."""
        roles = self._roles
        assert roles is not None  # a layout was entered
        failed = False
        for todo, act in ((self._unconnected, self._connect_backup), (self._unfilled, self._fill)):
            for server in sorted(todo):
                with self._news:
                    todo.discard(server)  # before, since the connection may break again as soon as it is made
                try:
                    act(wanted, roles, server)
                except BaseException as error:  # why: whatever the error, this is left to do
                    with self._news:
                        todo.add(server)
                    if not isinstance(error, OSError | PeerLost):
                        raise
                    log.info("%s is not reached (%s); trying again", wanted.layout.servers[server].id, error)
                    failed = True
        if not failed and self._reported != self._number and self.me in wanted.layout.fillers():
            with self._changed:
                if not self._are_filled(roles):
                    return True  # a connection broke meanwhile
                self._reported = self._number
                self._reopen(roles)
            self._on_copied(self._number)
        if not failed:
            self._compact()
        return failed

    def _compact(self) -> None:
        """Give back the memory of buckets that are not here any more, a little at a time."""
        while True:
            with self._copies_lock:
                if not self._copies.compact(COMPACTED_ROWS):
                    return
            with self._news:
                if self._news.wait_for(self._has_work, PAUSE_S):
                    return

    def _connect_backup(self, wanted: _Wanted, roles: BucketRoles, server: int) -> None:
        """Make the other server's copies equal, and send it all updates from then on."""
        buckets = roles.sent_to(server)
        connection = self._dial(wanted, server)
        try:
            digests, trails = w.decode_digests(request(connection, w.CompareBuckets(), [buckets]), len(buckets))
        except BaseException:  # why: the connection must not stay open, whatever the error
            connection.close()
            raise
        with self._changed:
            with self._copies_lock:
                split = split_by_digests(self._copies, buckets, digests, trails)
            route = self._routes.get(server)
            if route is None:
                route = self._new_route(server, connection)
            else:
                connection.close()  # copies are being filled there: all updates keep one order
            for update, mask in split.updates:
                route.send_update(update.within(self._copies.table, mask))
            route.followed.begin_equal(split.equal)
            route.followed.begin_equal(split.behind)
            self._reopen(roles)
        self._copy(wanted, roles, route, split.other)

    def _fill(self, wanted: _Wanted, roles: BucketRoles, server: int) -> None:
        """Fill copies at the other server, and send it their updates from then on."""
        buckets = roles.filled_at(server)
        with self._changed:
            route = self._routes.get(server)
        if route is None:
            connection = self._dial(wanted, server)
            with self._changed:
                route = self._new_route(server, connection)
        self._copy(wanted, roles, route, buckets)

    def _dial(self, wanted: _Wanted, server: int) -> PeerConnection:
        check = self._check(wanted.layout.number)
        connection = dial(wanted.layout, wanted.key, self.me, server, check, self._tls)
        connection.set_check(check)
        return connection

    def _new_route(self, server: int, connection: PeerConnection) -> UpdateRoute:
        connection.set_check(None)  # `_close_routes` ends it
        route = UpdateRoute(connection, lambda broken: self._route_broken(server, broken))
        self._routes[server] = route
        self._require_current()
        if not route.send_tables(self._copies).wait():
            raise PeerLost("it did not take the tables")
        return route

    def _require_current(self) -> None:
        """Raise if the layout has changed, so that no route is used that `follow` could not interrupt."""
        self._check(self._number)()

    def _copy(self, wanted: _Wanted, roles: BucketRoles, route: UpdateRoute, buckets: Buckets) -> None:
        """Send copies in small pieces. Pushes go on while one is on its way, and follow it."""
        with self._copies_lock:
            pieces = self._copies.pieces(buckets, PIECE_SIZE)
        for piece in pieces:
            with self._changed:
                self._check(wanted.layout.number)()
                with self._copies_lock:
                    copy = route.followed.copy(self._copies, piece)
                ticket = route.send_copy(copy)
                self._reopen(roles)
            if not ticket.wait():
                raise PeerLost("it did not take the copies")
            route.followed.confirm(piece)

    def _route_broken(self, server: int, route: UpdateRoute) -> None:
        """Close the buckets of a route that broke until the other server has them again."""
        with self._changed:
            roles = self._roles
            if self._routes.get(server) is not route or roles is None:
                return
            del self._routes[server]
            self._reopen(roles)
            backup, incoming = roles.sent_to(server), roles.filled_at(server)
            with self._news:
                self._unconnected |= {server} if len(backup) else set()
                self._unfilled |= {server} if len(incoming) else set()
                self._news.notify_all()

    # ------------------------------------------------------------------------------------------------- serving

    def _key_of(self, layout: int, member: MemberId) -> bytes | None:  # noqa: ARG002 - the key is proof enough
        return self._key if layout == self._number else None

    def _serve(self, layout: int, member: MemberId, connection: PeerConnection) -> None:
        while layout == self._number:
            head, bodies = w.receive_message(connection)
            try:
                reply, arrays = self._answer(layout, head, bodies)
            except StaleUpdate as stale:
                reply, arrays = w.NotAnswered(str(stale), stale=True), []
            except BadInput as error:
                reply, arrays = w.NotAnswered(error.why), []
            except DamagedFrame as error:
                log.warning("a request of %s was refused: %s", member, error)
                raise
            w.send_message(connection, reply, arrays)

    def _answer(self, layout: int, head: w.Request | w.Reply, bodies: list[bytearray]) -> Reply:
        match head:
            case w.PushRows(to_backup=True) | w.CopyTables() | w.CompareBuckets() | w.InstallBuckets():
                return self._answer_primary(layout, head, bodies)
            case w.PullRows():
                return self._pull(layout, head, bodies)
            case w.PushRows():
                return self._push(layout, head, bodies)
            case w.OpenTables():
                return self._open_tables(layout, head)
            case w.SaveTables():
                if not 0 <= head.number <= LAST:
                    raise DamagedFrame(f"a checkpoint cannot have the number {head.number}")
                try:
                    if not self.save(head.number, layout):
                        return self._moved()
                except OSError as error:
                    return w.NotAnswered(f"the checkpoint could not be written: {error}"), []
                return w.Answered(), []
            case _:
                raise DamagedFrame("an answer arrived where a request was expected")

    def _moved(self) -> Reply:
        return w.NotAnswered("the layout changed", again=True), []

    def _open_tables(self, layout: int, head: w.OpenTables) -> Reply:
        check_tables(head.tables, head.policy)
        with self._changed:
            if layout != self._number:
                return self._moved()
            with self._copies_lock:
                self._copies.define(head.tables, head.policy)
            tickets = [route.send_tables(self._copies) for route in self._routes.values()]
        return self._when_kept(tickets)

    def _pull(self, layout: int, head: w.PullRows, bodies: list[bytearray]) -> Reply:
        (body,) = w.exactly(bodies, 1)
        ids = w.as_array(body, np.int64)
        w.require_ascending(ids)
        if not 0 <= head.step <= w.SEQUENCE_MAX:
            raise DamagedFrame(f"a pull has the step {head.step}")
        with self._copies_lock:
            rows, roles = self._copies.rows(head.table), self._roles
            if (size := 4 * len(ids) * rows.table.dim) + 8 * BUCKETS > w.BODY_MAX:
                raise BadInput(f"Table {head.table}: {len(ids)} rows have {size} bytes. Pull fewer rows at a time.")
            buckets = np.unique(buckets_of(rows.table, ids))
            if layout != self._number or roles is None or not roles.primary[buckets].all():
                return self._moved()
            self._copies.begin_step(buckets, head.step)
            return w.Answered(), [rows.pull(ids), self._copies.version[buckets]]

    def _push(self, layout: int, head: w.PushRows, bodies: list[bytearray]) -> Reply:
        update = self._decode_update(head, bodies)
        with self._changed:
            self._changed.wait_for(lambda: layout != self._number or self._open[update.buckets].all())
            if layout != self._number:
                return self._moved()
            with self._copies_lock:
                fresh = self._copies.apply(update)
            tickets = self._send_on(update, fresh)
        return self._when_kept(tickets)

    def _decode_update(self, head: w.PushRows, bodies: list[bytearray]) -> Update:
        with self._copies_lock:
            dims = {table.name: table.dim for table in self._copies.tables}
        return w.decode_update(head, bodies, dims)

    def _send_on(self, update: Update, fresh: Mask) -> list[Ticket]:
        """Send an update to the other copies. A repeated update waits for what was sent before."""
        covered: Mask = np.zeros(BUCKETS, np.bool_)
        covered[update.buckets] = True
        tickets = []
        for route in self._routes.values():
            mine = fresh & route.followed.mask
            if mine.any():
                tickets.append(route.send_update(update.within(self._copies.table, mine)))
            elif (covered & route.followed.mask).any():
                tickets.append(route.barrier())
        return tickets

    def _when_kept(self, tickets: list[Ticket]) -> Reply:
        if all(ticket.wait() for ticket in tickets):
            return w.Answered(), []
        return w.NotAnswered("a backup did not confirm it", again=True), []

    # ------------------------------------------------------------------------------------------------- backups

    def _answer_primary(self, layout: int, head: ToBackup, bodies: list[bytearray]) -> Reply:
        """Answer another server, which is the primary of buckets."""
        if isinstance(head, w.InstallBuckets):
            return self._install(layout, w.decode_copy(head.tree, bodies))
        if isinstance(head, w.PushRows):
            return self._apply(layout, self._decode_update(head, bodies))
        with self._copies_lock:
            if layout != self._number:
                return self._moved()
            if isinstance(head, w.CopyTables):
                check_tables(head.tables, head.policy)
                self._copies.define(head.tables, head.policy)
                return w.Answered(), []
            (body,) = w.exactly(bodies, 1)
            buckets = w.decode_buckets(body)
            return w.Answered(), [self._copies.digests(buckets), self._copies.trails[buckets]]

    def _install(self, layout: int, copy: dict[str, Any]) -> Reply:
        with self._copies_lock:
            if layout != self._number:
                return self._moved()
            self._require_kept(copy["buckets"])
            self._copies.install(copy)
        return w.Answered(), []

    def _apply(self, layout: int, update: Update) -> Reply:
        """Apply an update that the primary of its buckets has applied."""
        with self._copies_lock:
            if layout != self._number:
                return self._moved()
            self._require_kept(update.buckets)
            if not self._copies.held[update.buckets].all():
                raise DamagedFrame("an update came for a bucket that is not here")
            self._copies.apply(update)
        return w.Answered(), []

    def _require_kept(self, buckets: Buckets) -> None:
        """Raise DamagedFrame unless this server keeps the buckets for other ones."""
        if self._roles is None or not self._roles.kept_for_others[buckets].all():
            raise DamagedFrame("a copy came for a bucket that this server does not keep for another one")

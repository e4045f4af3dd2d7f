"""A simulated parameter server: the real copies and roles, behind the protocol of `pliant.ps.server`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.core.messages import Leave
from pliant.core.ps.messages import ReportCopied
from pliant.core.ps.model import BUCKETS, BucketLayout
from pliant.ps.copies import BucketRoles, enter_roles, split_by_digests
from pliant.ps.tables.hashing import Buckets
from pliant.ps.tables.spec import PushPolicy, Table
from pliant.ps.tables.table_copy import Mask, TableCopy, Update
from pliant_sim.servers.later import LaterValue, Thread, all_of, start_thread
from pliant_sim.servers.process import SimulatedProcess
from pliant_sim.servers.route import SimulatedRoute

if TYPE_CHECKING:
    from pliant_sim.servers.world import ServerSimulation

RETRY_S = 0.2
REPEAT_S = 2.0
PIECES = 3  # of the copies that one server sends to another one

Answer = Callable[[Any], None]
Fill = Generator[LaterValue, Any, bool]


class PushAnswer(Enum):
    DONE = "done"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class WaitingPush:
    """A push of a worker, which names the layout that the worker uses."""

    layout: int
    update: Update
    answer: Answer


class SimulatedServer(SimulatedProcess):
    """One server's process. Its copies end with it."""

    def __init__(self, sim: ServerSimulation, name: str, table: Table, policy: PushPolicy) -> None:
        super().__init__(sim, name)
        self.copies = TableCopy()
        self.copies.define([table], policy)
        self.number = 0  # of the layout that it serves
        self.layout: BucketLayout | None = None
        self.roles: BucketRoles | None = None
        self.open: Mask = np.zeros(BUCKETS, np.bool_)
        self.routes: dict[int, SimulatedRoute] = {}
        self._wanted: BucketLayout | None = None
        self._entering = False
        self._waiting: list[WaitingPush] = []
        self._unconnected: set[int] = set()
        self._unfilled: set[int] = set()
        self._reported = 0

    # ------------------------------------------------------------------------------------------------- layouts

    def follow(self, layout: BucketLayout) -> None:
        if self._wanted is None or layout.number > self._wanted.number:
            self._wanted = layout
        if self._wanted.number != self.number and not self._entering:
            self._entering = True
            self.sim.after(self.sim.chance.uniform(0.0, 0.3), self.act, self._enter)

    def _enter(self) -> None:
        layout = self._wanted
        assert layout is not None
        self._entering = False
        self.number = 0  # so that what waits for a route of the layout before ends
        for route in self.routes.values():
            route.close()
        self.routes = {}
        roles = BucketRoles(layout, self.id)
        enter_roles(self.copies, roles, lambda missing: [])  # noqa: ARG005 - there is no checkpoint
        self.layout, self.roles, self.number = layout, roles, layout.number
        self._unconnected, self._unfilled = set(roles.backups()), set(roles.receivers())
        self._reported = 0
        self.sim.tell(f"{self.id} enters layout {layout.number} with {int(roles.primary.sum())} buckets")
        self._reopen(roles)
        start_thread(self._connect_all(layout, roles))

    def _connect_all(self, layout: BucketLayout, roles: BucketRoles) -> Thread:
        """Connect to backups, then fill copies, and again whenever a connection breaks."""
        fills = self.id in layout.fillers()
        while self.number == layout.number:
            failed = False
            for todo, act in ((self._unconnected, self._connect_backup), (self._unfilled, self._fill)):
                for server in sorted(todo):
                    done = yield from act(layout, roles, server)
                    if self.number != layout.number:
                        return
                    if done:
                        todo.discard(server)
                    failed = failed or not done
            if not failed and fills and self._reported != self.number and roles.are_filled(self._arrived()):
                self._reported = self.number
                self._reopen(roles)
                self._report(self.number)
                self.sim.reported(self, roles)
            yield self.sleep(RETRY_S)

    def _reopen(self, roles: BucketRoles) -> None:
        """Open the buckets whose other copies keep up, close the others, and try pushes that wait."""
        followed = {server: route.followed.mask for server, route in self.routes.items()}
        self.open = roles.open_buckets(followed, reported=self._reported == self.number)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.push(each.layout, each.update, each.answer)

    def _arrived(self) -> dict[int, Mask]:
        return {server: route.followed.arrived for server, route in self.routes.items()}

    def _report(self, number: int) -> None:
        """Report filled copies, again and again, as long as no layout follows."""
        if self.number == number:
            self.sim.command(self, ReportCopied(self.id, number))
            self.sim.after(REPEAT_S, self.act, self._report, number)

    def _connect_backup(self, layout: BucketLayout, roles: BucketRoles, server: int) -> Fill:
        """Make the other server's copies equal, and send it all updates from then on."""
        buckets = roles.sent_to(server)
        theirs = yield self.request(layout.servers[server].id, "compare", layout.number, buckets)
        if theirs is None or self.number != layout.number:
            return False
        split = split_by_digests(self.copies, buckets, *theirs)
        route = self.routes.get(server) or self._new_route(server)
        for update, mask in split.updates:
            route.send("update", update.within(self.copies.table, mask))
        route.followed.begin_equal(split.equal)
        route.followed.begin_equal(split.behind)
        self._reopen(roles)
        return (yield from self._copy(layout, roles, route, split.other))

    def _fill(self, layout: BucketLayout, roles: BucketRoles, server: int) -> Fill:
        """Fill copies at the other server, and send it their updates from then on."""
        buckets = roles.filled_at(server)
        route = self.routes.get(server) or self._new_route(server)
        return (yield from self._copy(layout, roles, route, buckets))

    def _copy(self, layout: BucketLayout, roles: BucketRoles, route: SimulatedRoute, buckets: Buckets) -> Fill:
        """Send copies in pieces, while pushes go on; False if they did not arrive."""
        for piece in np.array_split(buckets, PIECES) if len(buckets) else ():
            if route.broken or self.number != layout.number:
                return False
            ticket = route.send("install", route.followed.copy(self.copies, piece))
            self._reopen(roles)
            if not (yield ticket):
                return False
            route.followed.confirm(piece)
        return not route.broken

    def _new_route(self, server: int) -> SimulatedRoute:
        assert self.layout is not None
        route = SimulatedRoute(self, self.sim.servers[self.layout.servers[server].id], self.number, server)
        self.routes[server] = route
        return route

    def route_broken(self, route: SimulatedRoute) -> None:
        """Close the buckets of a route that broke until the other server has them again."""
        roles = self.roles
        if self.routes.get(route.server) is not route or roles is None:
            return
        del self.routes[route.server]
        self._reopen(roles)
        backup, incoming = roles.sent_to(route.server), roles.filled_at(route.server)
        self._unconnected |= {route.server} if len(backup) else set()
        self._unfilled |= {route.server} if len(incoming) else set()

    # ------------------------------------------------------------------------------------------------- workers

    def push(self, layout: int, update: Update, answer: Answer) -> None:
        request = WaitingPush(layout, update, answer)
        if layout != self.number:
            answer(PushAnswer.AGAIN)
        elif not self.open[update.buckets].all():
            self._waiting.append(request)
        else:
            self._apply(request)

    def _apply(self, request: WaitingPush) -> None:
        update, table_of = request.update, self.copies.table
        fresh = self.copies.apply(update)
        covered: Mask = np.zeros(BUCKETS, np.bool_)
        covered[update.buckets] = True
        tickets = []
        for route in self.routes.values():
            mine = fresh & route.followed.mask
            if mine.any():
                tickets.append(route.send("update", update.within(table_of, mine)))
            elif (covered & route.followed.mask).any():
                tickets.append(route.barrier())

        def kept(answers: list[bool]) -> None:
            if all(answers):
                self.sim.checks.acknowledged(self, request.layout, update)
            request.answer(PushAnswer.DONE if all(answers) else PushAnswer.AGAIN)

        all_of(tickets).then(kept)

    def pull(self, layout: int, step: int, ids: Buckets, buckets: Buckets, answer: Answer) -> None:
        if layout != self.number or self.roles is None or not self.roles.primary[buckets].all():
            answer(None)
            return
        self.copies.begin_step(buckets, step)
        answer(self.copies.rows(self.sim.table.name).pull(ids))

    # ------------------------------------------------------------------------------------------ other servers

    def compare(self, layout: int, buckets: Buckets, answer: Answer) -> None:
        found = (self.copies.digests(buckets), self.copies.trails[buckets])
        answer(found if layout == self.number else None)

    def take(self, layout: int, kind: str, content: Any) -> bool:
        """Carry out a message of a primary; False if it is refused, which ends the connection."""
        if layout != self.number:
            return False
        if kind == "install":
            self.copies.install(content)
            return True
        if not self.copies.held[content.buckets].all():
            return False
        self.copies.apply(content)
        return True

    # --------------------------------------------------------------------------------------------- the process

    @property
    def is_connected(self) -> bool:
        """Return whether every backup keeps up, and every copy is filled."""
        return not self._unconnected and not self._unfilled

    def leave_if_empty(self) -> None:
        """Leave once this server drains and has no bucket."""
        layout = self.layout
        if layout is not None and self.id in layout.leaving and not layout.holds(self.id):
            self.sim.command(self, Leave(self.id, 0, "its buckets are on other servers"))

"""The process of a parameter server. An agent starts it: `pliant run --ps N`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time

from pliant import settings
from pliant.client.addresses import local_address
from pliant.core.job.launches import FENCED_CODE
from pliant.core.member import signals as s
from pliant.core.messages import Leave
from pliant.core.model.job import JobState
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.core.ps.messages import JoinServers, ReportCopied
from pliant.credentials import TlsFiles, read_token
from pliant.errors import BadInput, PliantError
from pliant.ps.saving import TableStorage
from pliant.ps.server import ParameterServer
from pliant.train.checkpoint import owner_name
from pliant.train.coordinator_link import JobAlreadyEnded, MemberLink
from pliant.train.peer.framing import PeerLost
from pliant.train.process import SigtermListener, log_to_stderr, process_age_s
from pliant.wire.views import PeerKey

log = logging.getLogger("pliant.ps")

LAST_PUSHES_S = 10.0  # for workers that still push when their job ends, or all servers leave
LOOK_S = 0.2
REPEAT_S = 2.0  # between two reports of filled copies, as long as no layout follows


class ServerProcess:
    """Follows the job of one server, from its join to its end."""

    def __init__(self, save_every_s: float, keep: int) -> None:
        found, worker = settings.read(), settings.read_worker()
        if not found.coordinators or found.job is None or worker.member is None:
            raise BadInput("PLIANT_COORDINATOR, PLIANT_JOB and PLIANT_MEMBER must be set. Use `pliant run --ps N`.")
        self._save_every_s = save_every_s
        self._job, self._member = found.job, MemberId(worker.member)
        self._agent = AgentId(worker.agent or "none")
        token = read_token(found.token_file or found.own_token_file)
        tls = TlsFiles(found.ca_file, found.cert_file, found.key_file)
        self._link = MemberLink(found.coordinators, token, self._job, self._member, tls)
        storage = None
        if worker.checkpoint_dir is not None:
            owner = owner_name(self._link.job_created_at())
            storage = TableStorage(worker.checkpoint_dir, self._job, owner, keep)
        host = worker.address or local_address(found.coordinators[0])
        peer_tls = None
        if tls.ca_file is not None:
            from pliant.train.peer.tls import PeerTls

            peer_tls = PeerTls()
        self._server = ParameterServer(host, self._member, self._copied, storage, peer_tls)
        self._changed = threading.Condition()
        self._view: View | None = None
        self._asked_at: float | None = None  # when SIGTERM came
        self._fenced = ""
        self._copied_layout, self._report_at = 0, 0.0
        self._grace_s = worker.grace_s

    def run(self) -> int:
        """Serve until the job ends or this server leaves. Return the exit code."""
        join = JoinServers(self._member, self._agent, self._server.address, os.getpid(), process_age_s())
        try:
            self._link.join(join)
        except JobAlreadyEnded as late:
            log.info("%s", late.why)
            return late.code
        self._link.start(self)
        notice = SigtermListener(self._sigterm)
        try:
            return self._serve()
        finally:
            notice.close()
            self._link.close()

    def _serve(self) -> int:
        saved_at, number = time.monotonic(), 0
        while not self._fenced:
            with self._changed:
                self._changed.wait(LOOK_S)
                view = self._view
            if view is None:
                continue
            if view.state.ended:
                self._finish(together=True)
                return int(view.state is JobState.FAILED)
            if self._leaves(view):
                self._finish(together=_all_leave(view))
                self._link.send(Leave(self._member, 0, "its buckets are on other servers, or saved"))
                return 0
            self._report_copied(view)
            leads = view.layout is not None and view.layout.index(self._member) == 0
            if self._save_every_s and leads and time.monotonic() - saved_at >= self._save_every_s:
                saved_at, number = time.monotonic(), number + 1
                self._save_everywhere(number)
        self._server.close()
        log.warning("%s", self._fenced)
        return FENCED_CODE

    def _leaves(self, view: View) -> bool:
        """Return whether this server drains, and is not needed any more, or has no time left."""
        layout = view.layout
        if not view.draining or layout is None or self._member not in {*layout.leaving}:
            return False
        overdue = self._asked_at is not None and time.monotonic() - self._asked_at > self._grace_s / 2
        return _all_leave(view) or overdue or not layout.holds(self._member)

    def _finish(self, *, together: bool) -> None:
        """Wait for the workers' last pushes, stop serving, and save what no other server has.

        A checkpoint counts once all servers of one layout have written it. So servers that end together wait for each
        other, and write again if the layout changes meanwhile: one of them may be killed.
        """
        until = time.monotonic() + min(LAST_PUSHES_S, self._grace_s / 3)
        while self._server.workers() and time.monotonic() < until:
            time.sleep(LOOK_S)
        self._server.close()
        until, saved = time.monotonic() + min(LAST_PUSHES_S, self._grace_s / 3), 0
        while time.monotonic() < until:
            with self._changed:
                view = self._view
            if view is None or view.layout is None or not view.layout.holds(self._member):
                return
            try:
                if view.layout.number > saved:
                    self._server.take_over(view.layout, view.table_history)
                    saved = view.layout.number
                    if self._server.save():
                        log.info("the tables of this server are saved")
                if not together or self._server.is_saved():
                    return
            except OSError as error:
                log.error("the tables could not be saved: %s", error)
                return
            time.sleep(LOOK_S)

    def _save_everywhere(self, number: int) -> None:
        try:
            self._server.save_everywhere(number)
        except (OSError, PeerLost, PliantError) as error:
            log.warning("the tables could not be saved now: %s", error)

    def _copied(self, layout: int) -> None:
        with self._changed:
            self._copied_layout, self._report_at = layout, 0.0
            self._changed.notify_all()

    def _report_copied(self, view: View) -> None:
        """Report filled copies, again and again: the link drops what it cannot send."""
        now = time.monotonic()
        if view.layout is not None and view.layout.number == self._copied_layout and now >= self._report_at:
            self._report_at = now + REPEAT_S
            self._link.send(ReportCopied(self._member, self._copied_layout))

    def _sigterm(self) -> None:
        """The agent sends it when it leaves, or after the job ended. The coordinator drains the server then."""
        with self._changed:
            self._asked_at = self._asked_at or time.monotonic()
            self._changed.notify_all()

    # --------------------------------------------------------------------------- called by the member's link

    def feed(self, signal: s.Signal) -> None:
        """Ignore signals for the machine of a live member."""

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """Follow the layout, and the state of the job and of this server."""
        key = next((each.key for each in keys if view.layout is not None and each.generation == view.layout.number), "")
        if view.layout is not None and key and not view.state.ended:
            self._server.follow(view.layout, bytes.fromhex(key), view.table_history)
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def fenced(self, revision: int, why: str) -> None:  # noqa: ARG002 - as the link calls it
        """Stop: the coordinator does not have this server any more."""
        with self._changed:
            self._fenced = why
            self._changed.notify_all()


def _all_leave(view: View) -> bool:
    return view.layout is not None and {*view.layout.ids} <= view.layout.leaving


def main() -> int:
    """Run one parameter server."""
    log_to_stderr()
    parser = argparse.ArgumentParser(prog="python -m pliant.ps")
    parser.add_argument("--save-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--keep", type=int, default=2, metavar="N")
    options = parser.parse_args()
    try:
        return ServerProcess(options.save_every, options.keep).run()
    except PliantError as error:
        log.error("%s", error.why)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

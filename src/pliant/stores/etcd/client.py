"""Send requests to one of the endpoints of an etcd cluster, through its JSON gateway.

No call takes longer than the deadline, whichever endpoints are away. A read is tried at the next endpoint if one is
silent for its share of the deadline. A change is sent once: if it was sent and not answered, its outcome is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import httpx2
import msgspec

from pliant import __version__
from pliant.errors import PliantError, StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.etcd.access import EtcdAccess
from pliant.stores.etcd.errors import SpaceExceeded, TokenExpired, explain_answer, in_doubt, unreachable
from pliant.stores.etcd.transactions import (
    EtcdAnswer,
    LeaseAnswer,
    Op,
    OpAnswer,
    RangeAnswer,
    StatusAnswer,
    TxnAnswer,
    txn,
)

__all__ = ["EtcdClient"]

ANSWER_MAX = 256 << 20
MESSAGE_MAX = 500  # characters of an error that are passed on
KEEP_S = 60.0
CONNECT_SHARE = 0.3  # of the deadline, for one endpoint
READ_SHARE = 0.5  # of what is left, for one endpoint while there are others

# These fail before a request is sent.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)

A = TypeVar("A", bound=EtcdAnswer)


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str = ""
    error: Any = ""
    code: int = 0


class _TokenBody(EtcdAnswer, frozen=True):
    token: str = ""


class _StreamBody(EtcdAnswer, frozen=True):
    result: LeaseAnswer = LeaseAnswer()


class _Late(Exception):
    """The answer did not arrive in time."""


class EtcdClient:
    """A connection to a cluster. Threads may share it, and their calls run at the same time."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._urls = access.urls
        self._first = 0  # the endpoint to ask first: the last one that answered
        self._token: str | None = None
        self._lock = threading.Lock()
        self.revision = 0  # the highest revision of the cluster that an answer had
        self.cluster_id = 0
        self._http = httpx2.Client(
            headers={"user-agent": f"pliant/{__version__}"},
            verify=access.tls(),
            trust_env=False,  # only etcd may see the password
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=KEEP_S),
        )

    @property
    def place(self) -> str:
        return self._access.place

    def close(self) -> None:
        self._http.close()

    # ------------------------------------------------------------------------------------------------- requests

    def range(self, body: Op) -> RangeAnswer:
        return self._checked("/v3/kv/range", body, RangeAnswer, changes=False)

    def ranges(self, bodies: Sequence[Op]) -> TxnAnswer:
        """Read several ranges from one moment.

        Raises Compacted if that moment was compacted meanwhile. An etcd that has reached its quota refuses every
        transaction, also one that only reads, so each range is asked for alone then.
        """
        try:
            body = txn([], [{"request_range": each} for each in bodies])
            return self._checked("/v3/kv/txn", body, TxnAnswer, changes=False)
        except SpaceExceeded:
            first = self.range(bodies[0])
            rest = [self.range({"revision": first.header.revision, **each}) for each in bodies[1:]]
            return TxnAnswer(first.header, True, tuple([OpAnswer(each) for each in (first, *rest)]))

    def change(self, body: Op) -> TxnAnswer:
        """Run a transaction that may write. Raises StoreTimeout if its outcome is unknown."""
        return self._checked("/v3/kv/txn", body, TxnAnswer, changes=True)

    def grant(self, ttl_s: int) -> int:
        """Return the id of a new lease. A lease that is granted and not used ends by itself, so a retry is harmless."""
        return self._ask("/v3/lease/grant", {"TTL": ttl_s}, LeaseAnswer, changes=False).lease

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease. Return whether it was still there."""
        return self._ask("/v3/lease/keepalive", {"ID": lease}, _StreamBody, changes=False).result.ttl_s > 0

    def status(self) -> StatusAnswer:
        return self._ask("/v3/maintenance/status", {}, StatusAnswer, changes=False)

    def compact(self, revision: int) -> None:
        self._ask("/v3/kv/compaction", {"revision": revision}, EtcdAnswer, changes=False)

    def _checked(self, path: str, body: Op, kind: type[A], *, changes: bool) -> A:
        """Ask, and raise StoreError if another cluster answers or this one was set back to an older state."""
        seen = self.revision
        answer = self._ask(path, body, kind, changes=changes)
        header = answer.header
        if self.cluster_id not in (0, header.cluster_id) or header.revision < seen:
            # A change may have been applied there. The caller reads next, and learns the same.
            failure = StoreTimeout if changes else StoreError
            raise failure(
                f"etcd at {self.place} was replaced or set back to a backup while it was in use. Stop, and start again."
            )
        with self._lock:
            self.revision = max(self.revision, header.revision)
            self.cluster_id = header.cluster_id
        return answer

    # ------------------------------------------------------------------------------------------------- sending

    def _ask(self, path: str, body: Op, kind: type[A], *, changes: bool) -> A:
        until_s = time.monotonic() + self._access.deadline_s
        try:
            return self._ask_any(path, body, kind, until_s, changes)
        except TokenExpired:
            self._token = None
            if self._access.user is None:
                raise StoreError(
                    f"etcd at {self.place} wants a user: set PLIANT_ETCD_USER and PLIANT_ETCD_PASSWORD_FILE."
                ) from None
        try:
            return self._ask_any(path, body, kind, until_s, changes)
        except TokenExpired as error:
            raise StoreUnavailable(f"etcd at {self.place} ends every session at once; try again. ({error})") from None

    def _ask_any(self, path: str, body: Op, kind: type[A], until_s: float, changes: bool) -> A:
        """Ask one endpoint after the other. A change goes to the next one only if it was surely not sent."""
        first, count = self._first, len(self._urls)
        detail = "no time was left"
        failure: PliantError | None = None
        for attempt in range(count + 1):  # the last one again at the first, whose kept connection may have been old
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            place = (first + attempt) % count
            is_last = attempt == count or (changes and attempt == count - 1)
            share_s = left_s if changes or is_last else left_s * READ_SHARE
            try:
                answer = self._ask_one(self._urls[place], path, body, kind, share_s, changes)
            except _UNSENT as error:
                detail = f"{self._access.endpoints[place]}: {_reason(error)}"
                if "CERTIFICATE_VERIFY_FAILED" in detail:
                    raise StoreError(
                        f"The certificate of etcd is not accepted. Check PLIANT_ETCD_CA_FILE, and that the certificate "
                        f"names the host. ({detail})"
                    ) from error
            except (httpx2.TransportError, _Late) as error:
                detail = f"{self._access.endpoints[place]}: {_reason(error)}"
                if changes:
                    self._first = (place + 1) % count
                    raise in_doubt(self.place, detail) from error
            except StoreUnavailable as error:  # this member answered that it cannot help; another one may
                failure = error
            else:
                self._first = place
                return answer
        self._first = (first + 1) % count
        raise failure or unreachable(self.place, detail)

    def _ask_one(self, url: str, path: str, body: Op, kind: type[A], left_s: float, changes: bool) -> A:
        until_s = time.monotonic() + left_s
        token = self._authorization(url, until_s)
        status, data = self._send(url + path, body, token, until_s)
        if status == 200:
            return self._decoded(data, kind)
        raise self._explained(status, data, changes=changes)

    def _authorization(self, url: str, until_s: float) -> str | None:
        """Return the token of a session with etcd. Opens one if there is none."""
        if self._access.user is None or self._token is not None:
            return self._token
        body = {"name": self._access.user, "password": self._access.password()}
        status, data = self._send(url + "/v3/auth/authenticate", body, None, until_s)
        if status == 200:
            self._token = self._decoded(data, _TokenBody).token
            return self._token
        raise self._explained(status, data, changes=False)

    def _send(self, url: str, body: Op, token: str | None, until_s: float) -> tuple[int, bytes]:
        """Send one request and return the status and the body of its answer, all before `until_s`."""
        left_s = max(0.001, until_s - time.monotonic())
        connect_s = min(left_s, self._access.deadline_s * CONNECT_SHARE)
        timeout = httpx2.Timeout(left_s, connect=connect_s)
        headers = {"authorization": token} if token else {}
        content = msgspec.json.encode(body)
        with self._http.stream("POST", url, content=content, headers=headers, timeout=timeout) as response:
            data = bytearray()
            for piece in response.iter_raw():
                data += piece
                if time.monotonic() > until_s or len(data) > ANSWER_MAX:
                    raise _Late("the answer took too long")
            return response.status_code, bytes(data)

    def _decoded(self, data: bytes, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(data, type=kind, strict=False)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise StoreError(f"The server at {self.place} did not answer like an etcd. ({error})") from error

    def _explained(self, status: int, data: bytes, *, changes: bool) -> Exception:
        try:
            problem = msgspec.json.decode(data, type=_ErrorBody, strict=False)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            problem = _ErrorBody()
        message = (problem.message or str(problem.error))[:MESSAGE_MAX]
        return explain_answer(status, problem.code, message, self.place, changes=changes)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

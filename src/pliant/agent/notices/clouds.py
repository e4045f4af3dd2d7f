"""Notices of the clouds, from the metadata server that each has at the same address, in its own format.

Requests use neither a proxy nor a host name: the address exists only on this machine.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlencode

from pliant.agent.notices.base import WHY_MAX, Notice, Trouble

ANSWER_S = 5.0
BODY_MAX = 1 << 18
AWS_TOKEN_S = 21600  # six hours, the longest that AWS allows
GCP_WAIT_S = 60  # length of one long poll
GCP_PREEMPTED_S = 30.0  # the time of a preempted machine, by the documentation of Google Cloud
GCP_MAINTENANCE_S = 60.0

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a metadata server, and the time limit for an answer."""

    host: str = "169.254.169.254"
    port: int = 80
    answer_s: float = ANSWER_S


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """An answer of the metadata server. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace").strip()


def ask(
    server: Server, cloud: str, method: str, path: str, headers: Mapping[str, str], wait_s: float = 0.0
) -> MetadataAnswer:
    """Send one request on its own connection; raise Trouble without an answer. `wait_s` is added for a long poll."""
    link = HTTPConnection(server.host, server.port, timeout=wait_s + server.answer_s)
    where = f"The metadata server at {server.host}:{server.port}"
    try:
        link.request(method, path, headers=dict(headers))
        answer = link.getresponse()
        body = answer.read(BODY_MAX + 1)
        if len(body) > BODY_MAX:
            raise Trouble(f"{where} answered {method} {path} with more than {BODY_MAX} bytes.")
        return MetadataAnswer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, body)
    except TimeoutError as error:
        raise Trouble(f"{where} does not answer. Is this machine one of {cloud}'s?") from error
    except (OSError, HTTPException, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Trouble(f"{where} cannot be asked: {said}. Is this machine one of {cloud}'s?") from error
    finally:
        link.close()


class AwsWatcher:
    """`aws`: spot instances, through IMDSv2. Two minutes before; a rebalance recommendation is only a remark."""

    name = "aws"
    pause_s = 5.0  # as AWS recommends

    def __init__(self, server: Server | None = None, now: Clock = time.time) -> None:
        self._server = server or Server()
        self._now = now
        self._token = ""
        self._rebalance_told = False

    def look(self, remark: Callable[[str], None]) -> Notice | None:
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer.status == 200:
            said = _object(answer, "the spot notice")
            action = _text(said, "action")
            if action == "none":
                return None
            return Notice(_until(said.get("time"), self._now()), f"AWS will {action} this spot instance")
        _expect(answer, 404, "the spot notice")
        if not self._rebalance_told:
            self._look_for_rebalance(remark)
        return None

    def _look_for_rebalance(self, remark: Callable[[str], None]) -> None:
        answer = self._get("/latest/meta-data/events/recommendations/rebalance")
        if answer.status == 200:
            self._rebalance_told = True
            at = _object(answer, "the rebalance recommendation").get("noticeTime")
            remark(f"AWS recommends, since {str(at)[:40]}, to replace this spot instance: it may be taken away soon")

    def _get(self, path: str) -> MetadataAnswer:
        for _ in range(2):
            if not self._token:
                self._token = self._new_token()
            answer = ask(self._server, "AWS", "GET", path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status != 401:
                return answer
            self._token = ""  # the token has expired
        raise Trouble("The metadata server of AWS takes none of the tokens that it gives.")

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_S), "Content-Length": "0"}
        answer = ask(self._server, "AWS", "PUT", "/latest/api/token", headers)
        if answer.status == 403:
            raise Trouble("This machine's access to the metadata server of AWS is turned off (HttpEndpoint).")
        _expect(answer, 200, "a token")
        if not answer.text.isascii() or not answer.text.isprintable() or not answer.text:
            raise Trouble("The metadata server of AWS gave a token that is none.")
        return answer.text


class GcpWatcher:
    """`gcp`: preemption, and maintenance that ends the machine. Each of the two keys has a watcher that long-polls."""

    name = "gcp"
    pause_s = 0.5  # a change is answered at once; the pause is for a server that does not wait

    def __init__(self, key: str, server: Server | None = None, wait_s: int = GCP_WAIT_S) -> None:
        self._key = key
        self._server = server or Server()
        self._wait_s = wait_s
        self._etag = ""  # empty: the first request is answered at once, since the value may be there already

    def look(self, remark: Callable[[str], None]) -> Notice | None:
        asked = {"wait_for_change": "true", "timeout_sec": str(self._wait_s), "last_etag": self._etag}
        query = f"?{urlencode(asked)}" if self._etag else ""
        path = f"/computeMetadata/v1/instance/{self._key}{query}"
        wait_s = self._wait_s if self._etag else 0.0
        answer = ask(self._server, "Google Cloud", "GET", path, {"Metadata-Flavor": "Google"}, wait_s)
        if answer.headers.get("metadata-flavor") != "Google":
            raise Trouble("What answers at the metadata server's address is not Google Cloud's.")
        _expect(answer, 200, self._key)
        etag = answer.headers.get("etag", "")
        if not etag:
            raise Trouble("The metadata server of Google Cloud gave no ETag to wait with.")
        changed, self._etag = etag != self._etag, etag
        return self._notice_from(answer.text, remark if changed else _ignore)

    def _notice_from(self, value: str, remark: Callable[[str], None]) -> Notice | None:
        match self._key, value.upper():
            case "preempted", "TRUE":
                return Notice(GCP_PREEMPTED_S, "Google Cloud preempts this machine")
            case "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE":
                return Notice(GCP_MAINTENANCE_S, "Google Cloud ends this machine for maintenance of its host")
            case "maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE":
                remark("Google Cloud moves this machine to another host; it will stand still for a moment")
            case ("preempted", "FALSE") | ("maintenance-event", "NONE"):
                pass
            case _:
                raise Trouble(f"The metadata server of Google Cloud says {value[:60]!r} of {self._key}.")
        return None


class AzureWatcher:
    """`azure`: scheduled events that take this machine away. The document lists others of its set as well."""

    name = "azure"
    pause_s = 1.0  # as Azure recommends for spot machines, which have 30 s

    def __init__(self, server: Server | None = None, now: Clock = time.time) -> None:
        self._server = server or Server()
        self._now = now
        self._machine = ""
        self._incarnation: object = None  # of the document that was read last

    def look(self, remark: Callable[[str], None]) -> Notice | None:
        if not self._machine:
            answer = self._get("/metadata/instance/compute/name?api-version=2021-02-01&format=text")
            _expect(answer, 200, "this machine's name")
            if not answer.text:
                raise Trouble("The metadata server of Azure does not know this machine's name.")
            self._machine = answer.text
        answer = self._get("/metadata/scheduledevents?api-version=2020-07-01")
        _expect(answer, 200, "the scheduled events")
        said = _object(answer, "the scheduled events")
        incarnation = said.get("DocumentIncarnation")
        if incarnation is not None and incarnation == self._incarnation:
            return None
        events = said.get("Events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise Trouble("The metadata server of Azure gave a document without its list of events.")
        notices = [found for event in events if (found := self._notice_from(event, remark)) is not None]
        self._incarnation = incarnation
        return min(notices, key=lambda found: math.inf if found.grace_s is None else found.grace_s, default=None)

    def _get(self, path: str) -> MetadataAnswer:
        return ask(self._server, "Azure", "GET", path, {"Metadata": "true"})

    def _notice_from(self, event: Mapping[str, Any], remark: Callable[[str], None]) -> Notice | None:
        resources = event.get("Resources")
        names = [str(name).lower() for name in resources] if isinstance(resources, list) else []
        if self._machine.lower() not in names:
            return None
        kind, about = str(event.get("EventType")), str(event.get("Description") or "")
        because = f": {about}" if about else ""
        if kind in ("Preempt", "Terminate"):
            verb = "preempts" if kind == "Preempt" else "ends"
            # An event that has started has no NotBefore any more.
            grace_s = _until(event["NotBefore"], self._now()) if event.get("NotBefore") else 0.0
            return Notice(grace_s, f"Azure {verb} this machine{because}"[:WHY_MAX])
        remark(f"Azure is going to {kind.lower()[:40]} this machine{because}"[:WHY_MAX])
        return None


# ------------------------------------------------------------------------------------------------------------- answers


def _expect(answer: MetadataAnswer, status: int, what: str) -> None:
    if answer.status != status:
        raise Trouble(f"The metadata server answered {answer.status} when asked for {what}.")


def _object(answer: MetadataAnswer, what: str) -> dict[str, Any]:
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Trouble(f"The metadata server answered nothing that can be read when asked for {what}.")
    return said


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not value.isalpha():
        raise Trouble(f"The metadata server's answer has no {key} that can be read.")
    return value


def _until(said: object, now: float) -> float | None:
    """Return the seconds until a written time, by this machine's clock; None if it cannot be parsed."""
    text = str(said)
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, at.timestamp() - now)
    return None


def _ignore(_: str) -> None:
    """Drop a remark that was made before."""

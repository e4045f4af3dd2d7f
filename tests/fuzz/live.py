"""Whole requests to a real coordinator: each is answered or cut off in time, and none changes anything."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from e2e.examples import example, furnish, state
from e2e.running import Running, start, token_of
from fuzz.mutate import Mutator
from fuzz.parser import Findings
from pliant.wire.api import Scope, TokenRequest
from pliant.wire.routes import ROUTES

NAME = "whole requests"
ANSWER_S = 20.0
GROWTH_MAX = 64 << 20
OTHER_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")


def run(home: Path, cases: int, seed: int) -> Findings:
    """Send damaged requests without a token, and with one that may only read."""
    found, began = Findings(NAME), time.monotonic()
    with start(home=home, lease_ttl_s=3600.0, head_time_s=1.0, body_time_s=1.0) as running:
        furnish(running)
        reader = token_of(running.client().create_token(TokenRequest(Scope.READ)).token)
        corpus = [*requests(running, ""), *requests(running, f"Authorization: Bearer {reader.text}\r\n")]
        mutator = Mutator(f"{seed} {NAME}", corpus)
        before, memory = state(running), _resident(running)
        for whole in corpus:  # undamaged ones that only read, so that something is accepted
            if whole.startswith(b"GET ") and (wrong := _answer(running, whole, found)):
                found.wrong.append(f"{wrong} for {whole[:300]!r}")
        while found.cases < cases and len(found.wrong) < 5:
            found.cases += 1
            data = mutator.next()
            if wrong := _answer(running, data, found):
                found.wrong.append(f"{wrong} for {data[:300]!r}")
        if state(running) != before:
            found.wrong.append("the state of the coordinator changed")
        if _resident(running) - memory > GROWTH_MAX:
            found.wrong.append(f"the coordinator kept {_resident(running) - memory} bytes")
        if "Traceback" in running.log or "bug in Pliant" in running.log:
            found.wrong.append(f"its log has a bug: {running.log[-1000:]}")
    found.seconds = round(time.monotonic() - began, 2)
    return found


def requests(running: Running, credential: str) -> list[bytes]:
    """A valid request for each route, with its credential. The connection ends with the answer."""
    made = []
    for route in ROUTES:
        sent = example(route)
        body = sent.body or b""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        host = f"Host: 127.0.0.1:{running.port}\r\n"
        head = f"{sent.method} {sent.url} HTTP/1.1\r\n{host}Connection: close\r\n{credential}{length}\r\n"
        made.append(head.encode() + body)
    return made


def _answer(running: Running, data: bytes, found: Findings) -> str:
    """Return what is wrong with the answer; empty if nothing is."""
    with socket.create_connection(("127.0.0.1", running.port), ANSWER_S) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while some := sock.recv(1 << 16):
                answer = (answer + some)[: 1 << 16]
        except TimeoutError:
            return f"no end of the answer within {ANSWER_S:g} s"
        except OSError:
            return ""  # cut off, as it may be
    for status in OTHER_STATUS.findall(answer[:200]):
        found.accepted += status == b"200"
        if status >= b"500" and status != b"503":
            return f"status {status.decode()}"
    return ""


def _resident(running: Running) -> int:
    return int(Path(f"/proc/{running.pid}/statm").read_text().split()[1]) * 4096

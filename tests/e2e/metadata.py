"""Metadata servers of three clouds, on this machine: the same paths, headers and refusals as the real ones."""

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from pliant.agent.notices.clouds import Server


class Metadata:
    """Change what it says with `put` and its like, while it serves. `close` and `serve` again on the same port."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.aws: dict[str, bytes] = {}
        self.gcp: dict[str, str] = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.azure_name = "trainer_0"
        self.incarnation = 1
        self.events: list[dict[str, object]] = []
        self.instead: tuple[int, bytes] | None = None  # an answer to everything
        self.port = 0
        self.server: ThreadingHTTPServer | None = None
        self.serve()

    def __enter__(self) -> "Metadata":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def place(self) -> Server:
        return Server("127.0.0.1", self.port)

    def serve(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            owner = self
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.owner.answer(self)

            def do_GET(self) -> None:
                self.owner.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        ThreadingHTTPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    # ----------------------------------------------------------------------------------------- what it says

    def spot(self, action: str, time: str) -> None:
        self.aws["/latest/meta-data/spot/instance-action"] = json.dumps({"action": action, "time": time}).encode()

    def rebalance(self, time: str) -> None:
        path = "/latest/meta-data/events/recommendations/rebalance"
        self.aws[path] = json.dumps({"noticeTime": time}).encode()

    def change(self, key: str, value: str) -> None:
        with self.lock:
            self.gcp[key] = value
            self.lock.notify_all()

    def schedule(self, *events: dict[str, object]) -> None:
        self.events = [*events]
        self.incarnation += 1

    # ----------------------------------------------------------------------------------------- how it says it

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{request.command} {request.path}")
        url = urlsplit(request.path)
        if self.instead is not None:
            self.send(request, *self.instead)
        elif url.path.startswith("/latest/"):
            self.answer_aws(request, url.path)
        elif url.path.startswith("/computeMetadata/v1/instance/"):
            self.answer_gcp(request, url.path.rpartition("/")[2], parse_qs(url.query))
        elif url.path.startswith("/metadata/"):
            self.answer_azure(request, url.path, parse_qs(url.query))
        else:
            self.send(request, 404, b"")

    def answer_aws(self, request: BaseHTTPRequestHandler, path: str) -> None:
        if path == "/latest/api/token":
            ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if request.command != "PUT" or not ttl.isdecimal() or not 1 <= int(ttl) <= 21600:
                self.send(request, 400, b"")
                return
            token = secrets.token_urlsafe(40)
            self.tokens.add(token)
            self.send(request, 200, token.encode())
        elif request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            self.send(request, 401, b"")
        elif path in self.aws:
            self.send(request, 200, self.aws[path])
        else:
            self.send(request, 404, b"<?xml version='1.0'?><title>404 - Not Found</title>")

    def answer_gcp(self, request: BaseHTTPRequestHandler, key: str, query: dict[str, list[str]]) -> None:
        if request.headers.get("Metadata-Flavor") != "Google":
            self.send(request, 403, b"Missing required header")
            return
        with self.lock:
            if query.get("wait_for_change") == ["true"]:
                limit = float(query.get("timeout_sec", ["60"])[0])
                before = query.get("last_etag", [_etag(self.gcp[key])])[0]
                self.lock.wait_for(lambda: _etag(self.gcp[key]) != before, limit)
            value = self.gcp[key]
        self.send(request, 200, value.encode(), {"Metadata-Flavor": "Google", "ETag": _etag(value)})

    def answer_azure(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        if request.headers.get("Metadata") != "true" or "api-version" not in query:
            self.send(request, 400, b'{"error":"Bad request. Required metadata header not specified"}')
        elif path == "/metadata/instance/compute/name":
            self.send(request, 200, self.azure_name.encode())
        else:
            said = {"DocumentIncarnation": self.incarnation, "Events": self.events}
            self.send(request, 200, json.dumps(said).encode())

    def send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


def _etag(value: str) -> str:
    return f"{sum(value.encode()):016x}"


def event(kind: str, *machines: str, not_before: str = "", **more: object) -> dict[str, object]:
    """One of Azure's."""
    return {
        "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [*machines],
        "EventStatus": "Scheduled" if not_before else "Started",
        "NotBefore": not_before,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }

"""The DNS server of the test cluster: addresses of Services, of headless Services and of named pods.

    python -m kube.cluster.dns ADDRESS API-URL CA CERT KEY

It follows Services and EndpointSlices by lists and watches, and answers A queries below `cluster.local` over UDP and
TCP. Every other name does not exist.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
from typing import Any

import httpx2

Objects = dict[tuple[str, str], dict[str, Any]]
ZONE = ("cluster", "local")
TTL_S = 2
WATCH_S = 300
RETRY_S = 0.5
_ADDRESS, _ANY = 1, 255
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_ANSWER, _AUTHORITATIVE, _RECURSION = 0x8000, 0x0400, 0x0180
SLICE_OF = "kubernetes.io/service-name"


class Directory:
    """The names of a cluster."""

    def __init__(self) -> None:
        self.services: Objects = {}
        self.slices: Objects = {}

    def resolve(self, name: str) -> list[str] | None:
        """Return the addresses of a name, None if it does not exist."""
        parts = tuple(name.lower().rstrip(".").split("."))
        if parts[-3:] != ("svc", *ZONE) or len(parts) not in (5, 6):
            return None
        *host, service, namespace = parts[:-3]
        found = self.services.get((namespace, service))
        if found is None:
            return None
        address = found["spec"].get("clusterIP")
        if not host and address not in (None, "", "None"):
            return [address]
        return self._endpoints(namespace, service, host[0] if host else None) or None

    def _endpoints(self, namespace: str, service: str, host: str | None) -> list[str]:
        found: list[str] = []
        for (where, _), each in list(self.slices.items()):
            if where == namespace and each["metadata"].get("labels", {}).get(SLICE_OF) == service:
                for endpoint in each.get("endpoints") or []:
                    ready = endpoint.get("conditions", {}).get("ready", True) is not False
                    if ready and (host is None or endpoint.get("hostname") == host):
                        found += endpoint["addresses"]
        return found


def respond(query: bytes, directory: Directory) -> bytes:
    """Return the response to a query with one question."""
    labels, place = [], 12
    while length := query[place]:
        labels.append(query[place + 1 : place + 1 + length].decode("ascii"))
        place += length + 1
    question = query[12 : place + 5]
    (kind,) = struct.unpack(">H", query[place + 1 : place + 3])
    found = directory.resolve(".".join(labels))
    addresses = found if found is not None and kind in (_ADDRESS, _ANY) else []
    code = _NO_ERROR if found is not None else _NO_SUCH_NAME
    head = struct.pack(">HHHHH", _ANSWER | _AUTHORITATIVE | _RECURSION | code, 1, len(addresses), 0, 0)
    records = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, TTL_S, 4) + socket.inet_aton(each) for each in addresses]
    return query[:2] + head + question + b"".join(records)


def follow(client: httpx2.Client, path: str, store: Objects) -> None:
    """Keep `store` equal to the objects below a path, for ever."""
    pause = threading.Event()
    while True:
        try:
            _follow_once(client, path, store)
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            print(f"{path}: {error!r}", flush=True)
            pause.wait(RETRY_S)


def _follow_once(client: httpx2.Client, path: str, store: Objects) -> None:
    listed = client.get(path).raise_for_status().json()
    store.clear()
    for each in listed["items"]:
        store[_key(each)] = each
    watch = {"watch": "1", "timeoutSeconds": str(WATCH_S), "resourceVersion": listed["metadata"]["resourceVersion"]}
    with client.stream("GET", path, params=watch, timeout=WATCH_S + 30) as answer:
        for line in answer.iter_lines():
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] == "DELETED":
                store.pop(_key(event["object"]), None)
            else:
                store[_key(event["object"])] = event["object"]


def _key(found: dict[str, Any]) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def serve(address: str, directory: Directory) -> None:
    """Answer queries for ever."""

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, own = self.request
            own.sendto(respond(query, directory), self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            (length,) = struct.unpack(">H", self.rfile.read(2))
            answer = respond(self.rfile.read(length), directory)
            self.wfile.write(struct.pack(">H", len(answer)) + answer)

    tcp = socketserver.ThreadingTCPServer((address, 53), Stream)
    threading.Thread(target=tcp.serve_forever, daemon=True).start()
    socketserver.ThreadingUDPServer((address, 53), Datagram).serve_forever()


def main(address: str, url: str, ca: str, cert: str, key: str) -> None:
    """Follow the API server and answer."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(cert, key)
    directory = Directory()
    for path, store in (
        ("/api/v1/services", directory.services),
        ("/apis/discovery.k8s.io/v1/endpointslices", directory.slices),
    ):
        client = httpx2.Client(base_url=url, verify=context, timeout=30.0, trust_env=False)
        threading.Thread(target=follow, args=(client, path, store), daemon=True).start()
    serve(address, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measure how fast a joiner receives the state from one, two and three donors, beside a raw socket in the same run.

Donors and the joiner are processes of their own and exchange the state as members do: authenticated, in stripes, with
every byte checked, into memory that the joiner prepared. The raw socket sends the same bytes from one process to
another, unchecked. Peak memory is that of the joiner, without its state. Prints one JSON object as its last line.
Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import resource
import secrets
import signal
import socket
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import MemberId
from pliant.train.peer.server import PeerServer
from pliant.train.state.flat import Leaf, flatten
from pliant.train.state.memory import PreparedMemory
from pliant.train.state.state_lock import StateLock
from pliant.train.state.transfer import StateDownload, StateSource, prepare_memory

LEAVES = 48  # tensors of the state
DONORS = (1, 2, 3)
PATIENCE_S = 300.0
PIECE = 1 << 20
JOINER = MemberId("joiner")


def _as_leaf(value: object) -> Leaf | None:
    return Leaf("u1", (len(value),), memoryview(value)) if isinstance(value, bytearray) else None


def _state(nbytes: int) -> list[bytearray]:
    """Return tensors with content: memory that was never written would be sent from one page."""
    return [bytearray(b"\x55" * (nbytes // LEAVES)) for _ in range(LEAVES)]


def donate(name: str, nbytes: int, pipe: Connection) -> None:
    """Serve the state until the pipe is closed."""
    held = _state(nbytes)
    gate = StateLock()

    def layout() -> tuple[bytes, list[bytearray]]:
        return flatten({"model": held}, _as_leaf).tree, held

    source = StateSource(gate, layout, memoryview, lambda _lineage: None, lambda: ())
    peers = PeerServer(
        "127.0.0.1", MemberId(name), lambda *_: None, lambda _g, _asker, kind, head: source.answer(kind, head)
    )
    gate.allow_reads(GENESIS, 5)
    pipe.send(peers.address)
    key, addresses = pipe.recv()
    for generation in range(1, len(DONORS) + 1):
        peers.add_generation(generation, key, addresses)
    pipe.send("ready")
    try:
        pipe.recv()
    except EOFError:
        peers.close()


def receive(pipe: Connection) -> None:
    """Receive the state from the donors that the pipe names, as often as it does; send the seconds and the memory."""
    peers = PeerServer("127.0.0.1", JOINER, lambda *_: None, lambda *_: (b"", []))
    pipe.send(peers.address)
    key, addresses = pipe.recv()
    for generation in range(1, len(DONORS) + 1):
        peers.add_generation(generation, key, addresses)
    pipe.send("ready")
    while True:
        try:
            generation, donors = pipe.recv()
        except EOFError:
            break
        fed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        memory = PreparedMemory()
        prepare_memory(memory, peers, sys.maxsize, generation, donors, threading.Event())
        prepared_s = time.perf_counter() - began
        began = time.perf_counter()
        download = StateDownload(peers, generation, donors, lambda *signals, fed=fed: fed.put(signals), memory=memory)
        download.start()
        fed.get(timeout=PATIENCE_S)
        took = time.perf_counter() - began
        got = sum(map(len, download.received.contents)) if download.received is not None else 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pipe.send((took, got, (peak - before) * 1024, prepared_s))
        del download
    peers.close()


def raw_receive(nbytes: int, pipe: Connection) -> None:
    """Receive that many bytes from a socket, and send the seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname())
        room = memoryview(bytearray(nbytes))
        with server.accept()[0] as sock:
            sock.recv(1)
            began, at = time.perf_counter(), 0
            while at < nbytes:
                at += sock.recv_into(room[at : at + PIECE])
            pipe.send(time.perf_counter() - began)


def raw_send(address: tuple[str, int], nbytes: int) -> None:
    held = _state(nbytes)
    with socket.create_connection(address) as sock:
        sock.sendall(b"x")
        for part in held:
            sock.sendall(part)


def _pair(start: Any, *arguments: object) -> tuple[Any, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=start, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def raw_gb_per_s(nbytes: int) -> float:
    whole = nbytes // LEAVES * LEAVES
    _, pipe = _pair(raw_receive, whole)
    sender = multiprocessing.Process(target=raw_send, args=(pipe.recv(), nbytes), daemon=True)
    sender.start()
    took: float = pipe.recv()
    sender.join()
    return whole / took / 1e9


def measure(nbytes: int, rounds: int) -> dict[str, Any]:
    """Return GB a second from each number of donors and of a raw socket, round by round."""
    key = secrets.token_hex(32)
    names = [MemberId(f"donor{number}") for number in range(max(DONORS))]
    donors = {name: _pair(donate, name, nbytes) for name in names}
    joiner, pipe = _pair(receive)
    addresses = {name: each[1].recv() for name, each in donors.items()} | {JOINER: pipe.recv()}
    for each in (*(pipe for _, pipe in donors.values()), pipe):
        each.send((key, addresses))
        each.recv()
    speeds: dict[str, list[float]] = {"raw": [], **{str(count): [] for count in DONORS}}
    peaks: list[int] = []
    prepared: list[float] = []
    for number in range(rounds):
        speeds["raw"].append(raw_gb_per_s(nbytes))
        for generation, count in enumerate(DONORS, 1):
            pipe.send((generation, tuple(names[:count])))
            took, got, peak, prepared_s = pipe.recv()
            assert got == nbytes // LEAVES * LEAVES, f"{got} of {nbytes} bytes arrived"
            speeds[str(count)].append(got / took / 1e9)
            peaks.append(peak)
            prepared.append(prepared_s)
        shown = ", ".join(f"{name} {each[-1]:.2f}" for name, each in speeds.items())
        print(f"round {number + 1}, GB/s: {shown}", flush=True)
    for each in (*(pipe for _, pipe in donors.values()), pipe):
        each.close()
    for process in (joiner, *(process for process, _ in donors.values())):
        process.join(PATIENCE_S)
    ratios = {
        str(count): [ours / raw for ours, raw in zip(speeds[str(count)], speeds["raw"], strict=True)]
        for count in DONORS
    }
    return {
        "gb_per_s": {name: round(statistics.median(each), 3) for name, each in speeds.items()},
        "ratio_to_raw": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        "prepared_s": round(statistics.median(prepared), 3),
        "peak_over_state": round((max(peaks) - nbytes) / nbytes, 3),
    }


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="size of the state")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    found = measure(asked.mb * 1_000_000, asked.rounds)
    print(json.dumps({"ok": True, "state_mb": asked.mb, "rounds": asked.rounds, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

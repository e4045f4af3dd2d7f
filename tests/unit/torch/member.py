"""A member of a world in a process of its own, told on standard input what to do.

Each line is a command with a number; each answer carries the number of its command. Commands run beside one another, as
they do in a training process: one thread trains while another wires, and a third breaks both.
"""

import contextlib
import ctypes
import json
import os
import socket
import struct
import sys
import threading
from typing import Any

import torch

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.torch.gloo import sockets as fence_module
from pliant.torch.gloo import wiring as wiring_module
from pliant.torch.gloo.group import GlooGroup
from pliant.torch.gloo.wiring import GlooWiring
from pliant.torch.group.contract import GroupBroken
from pliant.train.peer.kv import PeerValues
from pliant.train.peer.server import PeerServer, RequestRefused

Command = dict[str, Any]
SO_ATTACH_FILTER = 26


class Member:
    def __init__(self, name: str) -> None:
        self.name = MemberId(name)
        self.mailbox = PeerValues()
        self.peers = PeerServer("127.0.0.1", self.name, self.hear, self.give)
        self.wirings: dict[int, GlooWiring] = {}
        self.groups: dict[int, GlooGroup] = {}
        self.keys: dict[int, str] = {}
        self.saying = threading.Lock()

    def hear(self, generation: int, sender: MemberId, kind: str, head: bytes) -> None:
        self.mailbox.receive(generation, head)

    def give(self, generation: int, asker: MemberId, kind: str, head: bytes) -> tuple[bytes, list[memoryview]]:
        raise RequestRefused("nothing to give")

    def say(self, **what: object) -> None:
        with self.saying:
            print(json.dumps(what), flush=True)

    def do(self, command: Command) -> None:
        try:
            answer = getattr(self, f"do_{command['do']}")(command)
        except GroupBroken as broken:
            self.say(id=command["id"], broken=broken.why, peer=broken.peer)
        except Exception as error:  # why: the test must hear what went wrong here
            self.say(id=command["id"], error=repr(error))
        else:
            self.say(id=command["id"], answer=answer)

    def do_patience(self, command: Command) -> None:
        wiring_module.CONNECT_S = command.get("connect_s", wiring_module.CONNECT_S)
        wiring_module.WIRING_S = command.get("wiring_s", wiring_module.WIRING_S)
        fence_module.VANISHED_S = command.get("vanished_s", fence_module.VANISHED_S)

    def do_deafen(self, command: Command) -> None:
        """Drop all that comes to the sockets of a group, as if the network did."""
        nothing = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # one instruction: keep 0 bytes
        program = struct.pack("@HL", 1, ctypes.addressof(nothing))
        for sock, connection in self.groups[command["generation"]]._sockets._sockets():
            if connection is not None:
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def do_know(self, command: Command) -> None:
        self.keys[command["generation"]] = command["key"]
        self.peers.add_generation(command["generation"], command["key"], command["addresses"])

    def do_prepare(self, command: Command) -> None:
        number = command["generation"]
        members = tuple(MemberId(name) for name in command["members"])
        world = World(number, WorldKind.PLANNED, members, (1,) * len(members), Lineage(0, 0, 0))
        self.wirings[number] = GlooWiring(world, self.keys.get(number, ""), self.name, self.peers, self.mailbox)

    def do_wire(self, command: Command) -> None:
        self.do_prepare(command)
        self.do_run(command)

    def do_run(self, command: Command) -> None:
        self.groups[command["generation"]] = self.wirings[command["generation"]].run()

    def do_break_wiring(self, command: Command) -> None:
        self.wirings[command["generation"]].break_off()

    def do_reduce(self, command: Command) -> list[float]:
        """Sum tensors `times` over; the first and the last number of the last sum."""
        group = self.groups[command["generation"]]
        tensor = torch.empty(0)
        for _ in range(command["times"]):
            dtype = getattr(torch, command["dtype"])
            tensor = torch.full((command["length"],), group.rank + 1, dtype=dtype)
            group.all_reduce(tensor).wait()
        return [float(tensor[0]), float(tensor[-1])]

    def do_gather(self, command: Command) -> list[str]:
        return [data.decode() for data in self.groups[command["generation"]].gather(command["data"].encode())]

    def do_break(self, command: Command) -> None:
        self.groups[command["generation"]].break_off()

    def do_dispose(self, command: Command) -> None:
        self.groups.pop(command["generation"]).dispose()
        self.wirings.pop(command["generation"])

    def do_tidy(self, command: Command) -> None:
        """Let go of everything, so that the next test finds a process like a new one."""
        for group in self.groups.values():
            group.dispose()
        below = max([0, *self.keys]) + 1
        self.groups.clear()
        self.wirings.clear()
        self.keys.clear()
        self.do_forget({"below": below})

    def do_forget(self, command: Command) -> None:
        self.peers.forget_below(command["below"])
        self.mailbox.forget_below(command["below"])

    def do_count(self, command: Command) -> dict[str, int]:
        """Descriptors and threads, once what is being disposed of is gone."""
        for thread in threading.enumerate():
            if thread.name in ("pliant-dispose", "pliant-break-off"):
                thread.join()
        return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}  # noqa: PTH208

    def do_inherited(self, command: Command) -> int:
        """Return how many sockets a program started now would inherit."""
        count = 0
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with contextlib.suppress(OSError):
                count += os.get_inheritable(number) and os.readlink(f"/proc/self/fd/{number}").startswith("socket:")  # noqa: PTH115
        return count


def main() -> None:
    torch.set_num_threads(1)
    member = Member(sys.argv[1])
    member.say(address=member.peers.address)
    for line in sys.stdin:
        command = json.loads(line)
        # Waited for at the end, as every thread with an operation of torch must be: it lets go of it after its answer.
        threading.Thread(target=member.do, args=(command,)).start()
    member.peers.close()


if __name__ == "__main__":
    main()

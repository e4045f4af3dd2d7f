"""A whole cluster: a control plane, DNS, and real nodes, in a lab of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from kube.cluster import lab
from kube.cluster.control_plane import SERVICES, ControlPlane, control_plane
from kube.cluster.node import Node
from kube.cluster.prepared import prepare_images
from kube.cluster.processes import Daemon

API_PORT = 6443
ZONES = ("a", "b", "c")


@dataclass
class KubeCluster:
    """A control plane with nodes."""

    plane: ControlPlane
    nodes: list[Node]
    start_s: float
    dns: Daemon
    labels: dict[str, str] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)


@contextmanager
def kube_cluster(folder: Path, nodes: int = 3, *, server_options: Sequence[str] = ()) -> Iterator[KubeCluster]:
    """Start a cluster, wait until every node is Ready, and remove it all. Call it inside a lab."""
    began = monotonic()
    lab.open_network(SERVICES)
    folder.mkdir(parents=True, exist_ok=True)
    print("  images", flush=True)
    prepared = prepare_images(folder)
    print("  control plane", flush=True)
    with control_plane(
        folder / "plane", listen=lab.ADDRESS, port=API_PORT, scheduler=True, server_options=server_options
    ) as plane:
        dns = _dns(plane)
        made = [Node(plane, 1 + index, prepared, cpus=1.0, labels={"zone": ZONES[index % 3]}) for index in range(nodes)]
        try:
            dns.start()
            print(f"  {nodes} nodes", flush=True)
            for node in made:
                node.start()
            for node in made:
                node.wait_ready()
            yield KubeCluster(plane, made, monotonic() - began, dns)
        finally:
            for node in made:
                node.stop()
            dns.stop()


def _dns(plane: ControlPlane) -> Daemon:
    own = [str(plane.authority.pair.cert), str(plane.admin.cert), str(plane.admin.key)]
    return Daemon(lab.python_program("kube.cluster.dns", lab.ADDRESS, plane.url, *own), plane.folder / "dns.log")

"""A real control plane: etcd, kube-apiserver, kube-controller-manager and, where wanted, kube-scheduler.

    with control_plane(folder) as plane:          # loopback alone, no root, some seconds
        plane.kubectl("get", "namespaces")
        Client(kubeconfig=plane.kubeconfig)

There is no kubelet: pods stay Pending, unless `kube.cluster.node` runs them or `kube.cluster.fake_nodes` reports them.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from contract.etcd_cluster import EtcdCluster, etcd_cluster, free_ports
from e2e.running import wait_for
from kube.cluster.certificates import CLUSTER_ADMINS, ClusterAuthority, Pair
from kube.cluster.processes import Daemon
from kube.cluster.programs import program

LOOPBACK = "127.0.0.1"
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"  # of the API server itself
PODS = "10.244.0.0/16"
START_S = 300.0
KUBECTL_S = 300.0
# A node that is off is noticed after 10 s instead of the usual 50.
NODE_LOSS = ("--node-monitor-grace-period=10s", "--node-monitor-period=2s")


@dataclass
class ControlPlane:
    """A running control plane and the ways to use it."""

    folder: Path
    authority: ClusterAuthority
    url: str
    kubeconfig: Path
    admin: Pair
    etcd: EtcdCluster
    api_server: Daemon
    controllers: Daemon
    scheduler: Daemon | None = None
    _session: httpx2.Client | None = field(default=None, repr=False)

    def http(self) -> httpx2.Client:
        """A client of the API with all rights."""
        if self._session is None:
            context = ssl.create_default_context(cafile=str(self.authority.pair.cert))
            context.load_cert_chain(self.admin.cert, self.admin.key)
            self._session = httpx2.Client(base_url=self.url, verify=context, timeout=30.0, trust_env=False)
        return self._session

    def is_ready(self) -> bool:
        self.api_server.check()
        try:
            return self.http().get("/readyz", timeout=5.0).text == "ok"
        except httpx2.HTTPError:
            return False

    def kubectl(self, *args: str, stdin: str | None = None, code: int | None = 0) -> str:
        """Run kubectl with all rights and return its output. `code` is the expected exit status, None for any."""
        command = [program("kubectl"), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_S, check=False)
        said = done.stdout + (done.stderr if code != 0 else "")
        assert code is None or done.returncode == code, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return said

    def get(self, *args: str) -> dict[str, Any]:
        """One object, or a list of objects, as `kubectl get -o json` prints it."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects by kubectl."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def namespace(self, name: str, **labels: str) -> str:
        """Make a namespace and wait until pods can be created in it."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self.wait_account(name)
        return name

    def wait_account(self, namespace: str) -> None:
        """Wait for the namespace's default account: without it no pod is admitted."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_for(lambda: self.http().get(path).status_code == 200, f"the default account of {namespace}", START_S)

    def log_tails(self) -> str:
        daemons = [self.api_server, self.controllers, *([] if self.scheduler is None else [self.scheduler])]
        return "\n".join(f"--- {Path(each.command[0]).name}\n{each.tail()}" for each in daemons)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


@contextmanager
def control_plane(
    folder: Path,
    *,
    listen: str = LOOPBACK,
    port: int | None = None,
    scheduler: bool = False,
    server_options: Sequence[str] = (),
    controller_options: Sequence[str] = (),
) -> Iterator[ControlPlane]:
    """Start a control plane, wait until it works, and end it. It listens on one address; `port` is free by default."""
    folder.mkdir(parents=True, exist_ok=True)
    serving, *own = free_ports(3)
    serving = port or serving
    authority = ClusterAuthority(folder / "pki")
    url = f"https://{listen}:{serving}"
    with etcd_cluster(folder) as etcd:
        plane = _prepare(folder, authority, url, etcd, own)
        plane.api_server.command += server_options
        plane.controllers.command += [*NODE_LOSS, *controller_options]
        daemons = [plane.api_server, plane.controllers]
        if scheduler:
            plane.scheduler = _scheduler(plane, free_ports(1)[0])
            daemons.append(plane.scheduler)
        try:
            plane.api_server.start()
            wait_for(plane.is_ready, "the API server", START_S)
            for daemon in daemons[1:]:
                daemon.start()
            plane.wait_account("default")
            yield plane
        finally:
            plane.close()
            for daemon in reversed(daemons):
                daemon.stop()


def _prepare(folder: Path, authority: ClusterAuthority, url: str, etcd: EtcdCluster, ports: list[int]) -> ControlPlane:
    listen, _, port = url.removeprefix("https://").rpartition(":")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    serving = authority.issue("apiserver", "kube-apiserver", (), [*names, "localhost", LOOPBACK, listen, FIRST_SERVICE])
    to_nodes = authority.issue("to-nodes", "kube-apiserver-kubelet-client", [CLUSTER_ADMINS])
    admin = authority.issue("admin", "admin", [CLUSTER_ADMINS])
    accounts = authority.signing_key()
    api_server = [
        program("kube-apiserver"),
        f"--etcd-servers=http://{etcd.endpoints[0]}",
        f"--bind-address={listen}",
        f"--advertise-address={listen}",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'apiserver'}",
        f"--tls-cert-file={serving.cert}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={authority.pair.cert}",
        f"--kubelet-client-certificate={to_nodes.cert}",
        f"--kubelet-client-key={to_nodes.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={accounts.cert}",
        f"--service-account-signing-key-file={accounts.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--endpoint-reconciler-type=" + ("none" if listen == LOOPBACK else "lease"),
        "--allow-privileged=true",
    ]
    user = authority.issue("controllers", "system:kube-controller-manager")
    controllers = [
        program("kube-controller-manager"),
        f"--kubeconfig={authority.kubeconfig(folder / 'controllers.kubeconfig', url, user)}",
        f"--service-account-private-key-file={accounts.key}",
        f"--root-ca-file={authority.pair.cert}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports[0]}",
        f"--cert-dir={folder / 'controllers'}",
    ]
    return ControlPlane(
        folder,
        authority,
        url,
        authority.kubeconfig(folder / "kubeconfig", url, admin),
        admin,
        etcd,
        Daemon(api_server, folder / "apiserver.log"),
        Daemon(controllers, folder / "controllers.log"),
    )


def _scheduler(plane: ControlPlane, port: int) -> Daemon:
    user = plane.authority.issue("scheduler", "system:kube-scheduler")
    command = [
        program("kube-scheduler"),
        f"--kubeconfig={plane.authority.kubeconfig(plane.folder / 'scheduler.kubeconfig', plane.url, user)}",
        "--leader-elect=false",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={plane.folder / 'scheduler'}",
    ]
    return Daemon(command, plane.folder / "scheduler.log")


def seconds_to_start(folder: Path) -> float:
    """Start and end a control plane, and return the seconds until it worked."""
    began = time.monotonic()
    with control_plane(folder):
        return time.monotonic() - began

"""A real node in namespaces of its own: containerd, runc, CNI bridge, kubelet and kube-proxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.running import wait_for
from kube.cluster import cgroups, lab
from kube.cluster.control_plane import PODS, ControlPlane
from kube.cluster.images import PAUSE
from kube.cluster.processes import Daemon
from kube.cluster.programs import program

READY_S = 300.0
LEASE_S = 8
NODE_INIT = "kube.cluster.node_init"


class Node:
    """One node. `start` again after `power_off` is the same machine booted again, with its disk."""

    def __init__(
        self, plane: ControlPlane, number: int, prepared: Path, *, cpus: float, labels: Mapping[str, str]
    ) -> None:
        self.name = f"n{number}"
        self.link = lab.Link(self.name, number)
        self._plane = plane
        self._disk = plane.folder / self.name
        self._group = f"{lab.name()}/{self.name}"
        self._prepared = prepared
        self._cpus = cpus
        self._labels = dict(labels)
        self._daemon: Daemon | None = None

    @property
    def log(self) -> Path:
        return self._disk / "log"

    def start(self) -> None:
        """Boot. Returns before the node is Ready."""
        if not self._disk.exists():
            self._install()
        self.link.open()
        cgroups.remove(self._group)  # what a node that was off left costs the kubelet seconds
        cgroups.make(self._group)
        command = [
            *("nsenter", f"--net={self.link.namespace}"),
            *("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"),
            *lab.python_program(NODE_INIT, str(self._disk / "boot.json")),
        ]
        self._daemon = Daemon(command, self.log / "init.log")
        self._daemon.start()

    def power_off(self) -> None:
        """End every process of the node at once, as when its power fails. The Node object stays."""
        assert self._daemon is not None
        self._daemon.kill()
        self.link.close()

    def stop(self) -> None:
        """End it for good. Harmless if it does not run."""
        if self._daemon is not None and self._daemon.runs:
            self.power_off()
        cgroups.remove(self._group)

    def kill_kubelet(self) -> None:
        """Kill the kubelet alone; its containers run on."""
        for pid in self._kubelets():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self._kubelets(), f"the end of {self.name}'s kubelet")

    def _kubelets(self) -> list[int]:
        option = f"--hostname-override={self.name}"
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0] == program("kubelet") and option in words:
                    found.append(int(folder.name))
        return found

    def is_ready(self) -> bool:
        """Return whether the API server has it Ready; fails if the node's first process has ended."""
        assert self._daemon is not None
        self._daemon.check()
        answer = self._plane.http().get(f"/api/v1/nodes/{self.name}")
        if answer.status_code != 200:
            return False
        conditions = answer.json().get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def wait_ready(self) -> None:
        wait_for(self.is_ready, f"node {self.name} to be Ready", READY_S)

    def execute(self, *command: str) -> str:
        """Run a command in the node's namespaces."""
        assert self._daemon is not None
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
        return lab.run("nsenter", "-t", children[0], "-m", "-n", "-p", "-u", "-i", "--", *command)

    def _install(self) -> None:
        for name in ("lib", "log", "etc/cni"):
            (self._disk / name).mkdir(parents=True)
        copy_containerd(self._prepared, self._disk / "lib" / "containerd")
        authority = self._plane.authority
        user = authority.issue(self.name, f"system:node:{self.name}", ["system:nodes"], [self.name, self.link.address])
        proxy = authority.issue(f"{self.name}-proxy", "system:kube-proxy")
        etc = self._disk / "etc"
        kubelet = authority.kubeconfig(etc / "kubelet.kubeconfig", self._plane.url, user)
        authority.kubeconfig(etc / "proxy.kubeconfig", self._plane.url, proxy)
        (etc / "resolv.conf").write_text(f"nameserver {lab.ADDRESS}\n", encoding="ascii")
        (etc / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni(self.link.pods)), encoding="ascii")
        (etc / "containerd.toml").write_text(containerd_config(etc / "cni"), encoding="utf-8")
        # A leading `{` makes the programs take a file for something else: YAML documents start with `---`.
        (etc / "kubelet.yaml").write_text(
            f"---\n{json.dumps(self._kubelet(etc, user.cert, user.key))}\n", encoding="utf-8"
        )
        (etc / "proxy.yaml").write_text(
            f"---\n{json.dumps(_proxy(etc, self.name, self.link.address))}\n", encoding="utf-8"
        )
        labels = ",".join(f"{key}={value}" for key, value in self._labels.items())
        boot = {
            "name": self.name,
            "disk": str(self._disk),
            "containerd": ["containerd", "-c", str(etc / "containerd.toml")],
            "kubelet": [
                program("kubelet"),
                f"--config={etc / 'kubelet.yaml'}",
                f"--kubeconfig={kubelet}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.link.address}",
                "--cert-dir=/var/lib/kubelet/pki",
                *([f"--node-labels={labels}"] if labels else []),
            ],
            "proxy": [program("kube-proxy"), f"--config={etc / 'proxy.yaml'}"],
        }
        (self._disk / "boot.json").write_text(json.dumps(boot), encoding="utf-8")

    def _kubelet(self, etc: Path, cert: Path, key: Path) -> dict[str, Any]:
        spare_cpus = max((os.cpu_count() or 1) - self._cpus, 0)  # every node sees the whole machine
        reserved = {"cpu": f"{spare_cpus * 1000:.0f}m"} if spare_cpus else {}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.link.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.authority.pair.cert)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(cert),
            "tlsPrivateKeyFile": str(key),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "systemReserved": reserved,
            "failSwapOn": False,
            "failCgroupV1": False,
            "oomScoreAdj": 0,
            "clusterDNS": [lab.ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(etc / "resolv.conf"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "3s",
            "nodeLeaseDurationSeconds": LEASE_S,
        }


def copy_containerd(prepared: Path, to: Path) -> None:
    """Copy a containerd folder: layers as hard links, which overlayfs never writes, and databases as files."""
    subprocess.run(["cp", "-al", str(prepared), str(to)], check=True)
    for path in to.rglob("*.db"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)


def containerd_config(cni: Path) -> str:
    """The configuration of containerd, with a runtime that also works without the right to set OOM scores."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[{cri}]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [{cri}.containerd]
    snapshotter = "overlayfs"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [{cri}.cni]
    bin_dir = "{lab.CNI_PLUGINS}"
    conf_dir = "{cni}"
"""


def _cni(pods: str) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _proxy(etc: Path, node: str, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(etc / "proxy.kubeconfig")},
        "clusterCIDR": PODS,
        "mode": "iptables",
        "hostnameOverride": node,
        "bindAddress": address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }

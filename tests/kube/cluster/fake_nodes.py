"""Nodes without machines: Node objects kept Ready, whose pods are reported as running at once and as gone when deleted.

They show the load on the API server and on the operator, for which it does not matter that no process runs.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from types import TracebackType
from typing import Any

import httpx2

from kube.cluster.control_plane import ControlPlane

CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "500"}
RENEW_S = 5.0
LEASE_S = 40
WATCH_S = 300
PATCH = {"content-type": "application/merge-patch+json"}
_INFO = ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
         "kubeProxyVersion", "operatingSystem", "architecture")  # fmt: skip


class FakeNodes:
    """Some fake nodes, as a context manager. Pods get the phase Running when they are bound to one."""

    def __init__(self, plane: ControlPlane, number: int, prefix: str = "fake") -> None:
        self._http = plane.http()
        self.names = [f"{prefix}-{index}" for index in range(number)]
        self._over = threading.Event()
        self._addresses = count(1)
        self._workers = ThreadPoolExecutor(8)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._renew, self._follow)]

    def __enter__(self) -> FakeNodes:
        for name in self.names:
            labels = {"kubernetes.io/hostname": name, "pliant.dev/fake": "true"}
            node = {"metadata": {"name": name, "labels": labels}}
            self._http.post("/api/v1/nodes", json=node).raise_for_status()
            self._report_ready(name)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._workers.shutdown(cancel_futures=True)
        for name in self.names:
            self._http.delete(f"/api/v1/nodes/{name}")

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            for name in self.names:
                self._report_ready(name)

    def _report_ready(self, name: str) -> None:
        condition = {"type": "Ready", "status": "True", "reason": "Fake", "message": "", "lastHeartbeatTime": _now(),
                     "lastTransitionTime": _now()}  # fmt: skip
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "nodeInfo": dict.fromkeys(_INFO, "fake"),
                  "conditions": [condition]}  # fmt: skip
        self._patch(f"/api/v1/nodes/{name}/status", {"status": status})
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": _now(fraction=True)}
        if self._patch(f"{leases}/{name}", {"spec": spec}) == 404:
            self._http.post(leases, json={"metadata": {"name": name}, "spec": spec})

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                listed = self._http.get("/api/v1/pods").raise_for_status().json()
                for pod in listed["items"]:
                    self._workers.submit(self._handle, pod)
                version = listed["metadata"]["resourceVersion"]
                watch = {"watch": "1", "timeoutSeconds": str(WATCH_S), "resourceVersion": version}
                with self._http.stream("GET", "/api/v1/pods", params=watch, timeout=WATCH_S) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR" or self._over.is_set():
                            break
                        if event["type"] != "DELETED":
                            self._workers.submit(self._handle, event["object"])
            except (httpx2.HTTPError, RuntimeError):  # the API server restarts, or the test is over
                self._over.wait(0.5)

    def _handle(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if pod["spec"].get("nodeName") not in self.names:
            return
        if meta.get("deletionTimestamp"):
            now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                   "preconditions": {"uid": meta["uid"]}}  # fmt: skip
            self._http.request("DELETE", path, json=now)
        elif pod["status"].get("phase") == "Pending":
            self._patch(f"{path}/status", {"status": self._running(pod)})

    def _running(self, pod: dict[str, Any]) -> dict[str, Any]:
        number = next(self._addresses)
        address = f"10.202.{number >> 8 & 255}.{number & 255}"
        states = [
            {"name": each["name"], "image": each["image"], "imageID": each["image"], "ready": True, "started": True,
             "restartCount": 0, "state": {"running": {"startedAt": _now()}}}
            for each in pod["spec"]["containers"]
        ]  # fmt: skip
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": _now()} for kind in kinds]
        return {"phase": "Running", "startTime": _now(), "hostIP": "10.201.0.1", "podIP": address,
                "podIPs": [{"ip": address}], "containerStatuses": states, "conditions": conditions}  # fmt: skip

    def _patch(self, path: str, body: dict[str, Any]) -> int:
        return self._http.patch(path, content=json.dumps(body), headers=PATCH).status_code


def _now(*, fraction: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fraction else "%Y-%m-%dT%H:%M:%SZ")

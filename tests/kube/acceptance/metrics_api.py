"""A metrics API for the cluster's own HorizontalPodAutoscaler: one number, which a test chooses.

The API server passes requests for `external.metrics.k8s.io` to this process, as it does to an adapter of Prometheus.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kube.acceptance.installed import wait_until
from kube.cluster import lab
from kube.cluster.control_plane import ControlPlane

METRIC = "wanted_workers"
GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
NAMESPACE, NAME, PORT = "default", "metrics", 443


class MetricsServer(ThreadingHTTPServer):
    """Serves the discovery of the API and the value of the one metric."""

    value = 1
    asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        found: dict[str, Any] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        found["resources"] = []
        if self.path.partition("?")[0].endswith(f"/{METRIC}"):
            self.server.asked += 1
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            item = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(self.server.value)}
            kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}"}
            found = {**kind, "metadata": {}, "items": [item]}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def autoscaler(namespace: str, job: str, low: int, high: int) -> dict[str, Any]:
    """The HorizontalPodAutoscaler that gives a job as many workers as the metric says."""
    target = {"type": "AverageValue", "averageValue": "1"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "pliant.dev/v1alpha1", "kind": "ElasticJob", "name": job},
            "minReplicas": low,
            "maxReplicas": high,
            "metrics": [{"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


@contextmanager
def metrics_api(plane: ControlPlane) -> Iterator[MetricsServer]:
    """Serve the metrics API until the end of the block. Set `value` of what it returns."""
    pair = plane.authority.issue("metrics", "metrics", hosts=[lab.ADDRESS])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    with MetricsServer((lab.ADDRESS, 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        plane.apply(*_objects(server.server_address[1]))
        try:
            path = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{METRIC}"
            wait_until(lambda: plane.http().get(path).status_code == 200, "the metrics API")
            yield server
        finally:
            plane.kubectl("delete", "apiservice", f"{VERSION}.{GROUP}")
            plane.kubectl("-n", NAMESPACE, "delete", f"service/{NAME}", f"endpointslice/{NAME}")
            server.shutdown()
            thread.join()


def _objects(port: int) -> list[dict[str, Any]]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"ports": [{"port": PORT, "targetPort": port}]},
    }
    addresses = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "ports": [{"port": port}],
        "endpoints": [{"addresses": [lab.ADDRESS], "conditions": {"ready": True}}],
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": NAME, "namespace": NAMESPACE, "port": PORT},
        },
    }
    return [service, addresses, api]

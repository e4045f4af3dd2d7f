"""The cluster itself: what the other tests take for granted."""

from typing import Any

from e2e.running import wait_for
from kube.cluster.cluster import KubeCluster
from kube.cluster.images import PLIANT, TRAINER

PATIENCE_S = 400.0


# A Service has an address before the node of the client has its route.
ASK = """
import time, urllib.request
until = time.monotonic() + 120
while True:
    try:
        print(urllib.request.urlopen('http://web:8000', timeout=60).status)
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.2)
"""


def pod(name: str, image: str, *command: str, node: str = "") -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": list(command), "imagePullPolicy": "Never"}
    spec = {"containers": [container], "restartPolicy": "Never", **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def phase(cluster: KubeCluster, namespace: str, name: str) -> str:
    return str(cluster.plane.get("-n", namespace, "pod", name)["status"]["phase"])


def test_every_node_runs_pods_of_the_images_without_an_engine(cluster: KubeCluster) -> None:
    space = cluster.plane.namespace("images")
    for number, node in enumerate(cluster.nodes):
        image, check = (TRAINER, "import torch, pliant.torch, sklearn") if number == 0 else (PLIANT, "import pliant")
        made = pod(f"on-{node.name}", image, "python", "-c", f"{check}; print('imported')", node=node.name)
        cluster.plane.apply({**made, "metadata": {**made["metadata"], "namespace": space}})
    for node in cluster.nodes:
        name = f"on-{node.name}"
        wait_for(lambda name=name: phase(cluster, space, name) in ("Succeeded", "Failed"), name, PATIENCE_S)  # type: ignore[misc]
        assert cluster.plane.kubectl("-n", space, "logs", name).strip() == "imported"
    cluster.plane.kubectl("delete", "namespace", space)


def test_pods_reach_services_by_name_on_other_nodes(cluster: KubeCluster) -> None:
    space = cluster.plane.namespace("network")
    serve = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    server = pod("server", PLIANT, "python", "-c", serve, node="n1")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": space},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 8000}]},
    }
    cluster.plane.apply(
        service, {**server, "metadata": {"name": "server", "namespace": space, "labels": {"app": "web"}}}
    )
    cluster.plane.kubectl("-n", space, "wait", "--for=condition=Ready", "pod/server", "--timeout=60s")
    client = pod("client", PLIANT, "python", "-c", ASK, node="n2")
    cluster.plane.apply({**client, "metadata": {"name": "client", "namespace": space}})
    wait_for(lambda: phase(cluster, space, "client") in ("Succeeded", "Failed"), "the client", PATIENCE_S)
    assert cluster.plane.kubectl("-n", space, "logs", "client").strip() == "200"
    cluster.plane.kubectl("delete", "namespace", space)


def test_a_node_that_is_off_is_not_ready_and_comes_back(cluster: KubeCluster) -> None:
    node = cluster.node("n3")
    node.power_off()
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    wait_for(lambda: cluster.plane.kubectl("get", "node", "n3", "-o", path) == "Unknown", "n3 to be lost", PATIENCE_S)
    node.start()
    node.wait_ready()

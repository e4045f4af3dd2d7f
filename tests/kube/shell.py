"""`python -m kube --shell`: a cluster for a person, with kubectl ready."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kube.__main__ import FOLDER
from kube.cluster.cluster import kube_cluster
from kube.cluster.programs import cache


def main() -> None:
    """Start a cluster and a shell, and remove the cluster when the shell ends."""
    with kube_cluster(Path(os.environ[FOLDER])) as cluster:
        print(f"the cluster started in {cluster.start_s:.1f} s; it ends with this shell", flush=True)
        env = {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig), "PATH": f"{cache()}:{os.environ['PATH']}"}
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=env, check=False)


if __name__ == "__main__":
    main()

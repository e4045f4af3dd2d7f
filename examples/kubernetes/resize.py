"""Resize a job by its own progress, as a client of KungFu's configuration server does.

    python resize.py mnist --schedule 0:1,1000:4,5000:2

From step 1000 on the job has four workers, from step 5000 on two. KungFu's client writes the whole list of workers.
Here the target is enough, and the operator chooses the pods. `kubectl scale elasticjob/mnist --replicas=4` does one
such step.
"""

import argparse
import sys
import time

from pliant.kube.api import KubeApi

ENDED = ("Finished", "Failed", "Cancelled")


def parse_schedule(text: str) -> list[tuple[int, int]]:
    """Parse STEP:SIZE pairs."""
    pairs = [part.split(":") for part in text.split(",")]
    return sorted((int(step), int(size)) for step, size in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--schedule", type=parse_schedule, required=True, metavar="STEP:SIZE,...")
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between looks")
    options = parser.parse_args()
    api = KubeApi.connect()
    while True:
        job = api.get("ElasticJob", options.namespace, options.job)
        if job is None or job.get("status", {}).get("state") in ENDED:
            return 0
        step = job.get("status", {}).get("progress", {}).get("step", 0)
        due = [size for start, size in options.schedule if start <= step]
        if due and job["spec"]["workers"].get("target") != due[-1]:
            api.patch_job(options.namespace, options.job, {"spec": {"replicas": due[-1]}}, part="scale")
            print(f"step {step}: {due[-1]} workers", flush=True)
        if len(due) == len(options.schedule):
            return 0
        time.sleep(options.every_s)


if __name__ == "__main__":
    sys.exit(main())

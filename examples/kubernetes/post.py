"""Submit a job by one POST request, with Python alone: no Pliant and no rights in the cluster.

    python post.py --coordinator https://pliant.example:7711 --ca-file ca.pem --token-file anna.token \
        --worker-num 2 --image team/trainer:1 --task mnist

The options are those of ElasticDL's TF-runtime client, --master among them. Pods run the image's exec.py with TF_CONFIG
and NUM_WORKERS.
"""

import argparse
import json
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", "--master", required=True, help="URL of the coordinator")
    parser.add_argument("--token-file", type=Path, required=True, help="file with a token of scope submit")
    parser.add_argument("--ca-file", help="certificate of the coordinator's CA")
    parser.add_argument("--strategy", choices=["AllReduce", "ParameterServer"], default="AllReduce")
    parser.add_argument("--worker-num", type=int, required=True)
    parser.add_argument("--ps-num", type=int, default=0)
    parser.add_argument("--image", required=True)
    parser.add_argument("--task", default="default")
    options = parser.parse_args()
    if (options.strategy == "ParameterServer") != (options.ps_num > 0):
        parser.error("--ps-num belongs to --strategy ParameterServer")
    wanted = {
        "task": options.task,
        "image": options.image,
        "size_min": 1,
        "size_max": options.worker_num,
        "servers": options.ps_num,
    }
    request = urllib.request.Request(
        f"{options.coordinator}/v1/submissions",
        data=json.dumps(wanted).encode(),
        headers={
            "authorization": f"Bearer {options.token_file.read_text(encoding='ascii').strip()}",
            "content-type": "application/json",
        },
    )
    context = ssl.create_default_context(cafile=options.ca_file) if options.ca_file else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            made = json.load(answer)
    except urllib.error.HTTPError as error:
        print(f"refused ({error.code}): {json.load(error)['why']}", file=sys.stderr)
        return 1
    print(f"{made['task']} is {made['state']}: {made['why']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

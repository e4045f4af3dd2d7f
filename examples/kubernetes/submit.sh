#!/bin/sh
# ElasticDL's `elasticdl train --distribution_strategy ParameterServerStrategy`, as one command.
# submit.sh IMAGE [OPTION...]: the options go to `pliant submit`, such as --namespace or --follow.
#
#   --job_name             --task            --num_workers           --workers MIN:MAX
#   --num_ps_pods          --ps-num          --worker_resource_limit --limit
#   --envs                 --env             --checkpoint_dir        --claim, a volume claim
#
# The program is TensorFlow's. A program with pliant.tasks needs --mode tasks, and its parameter servers are Pliant's.
set -eu
image=$1
shift
exec pliant submit --image "$image" --task mnist --workers 1:4 --target 2 --ps-num 1 \
  --limit cpu=1 --limit memory=4Gi --env TF_CPP_MIN_LOG_LEVEL=1 "$@" -- pliant run --env tf /app/train.py

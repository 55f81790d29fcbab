#!/bin/sh
# Rank 0 starts the head and runs the driver; the others join it and stay until it is gone. Ports differ from those of SkyPilot's own Ray.
set -eu

head=$(printf '%s\n' "$SKYPILOT_NODE_IPS" | head -n 1)
pools='{"coevo-pool-weak": 1, "coevo-pool-rollout": 1, "coevo-pool-train": 1, "coevo-market-spot": 1, "coevo-market-on-demand": 1}'

if [ "$SKYPILOT_NODE_RANK" -ne 0 ]; then
    exec ray start --block --address="$head:6399" --resources="$pools"
fi
ray start --head --port=6399 --dashboard-port=8299 --resources="$pools"
RAY_ADDRESS="$head:6399" exec coevo run /opt/coevo/run.yaml --display plain

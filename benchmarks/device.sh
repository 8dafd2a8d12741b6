#!/usr/bin/env bash
# Everything that waits for a CUDA device, in under 10 minutes: the device tests, then decode and prefill with and
# without graphs. usage: benchmarks/device.sh [PYTHON]     (never run on a device)
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-python3}"
export PYTHONPATH=src
timeout 240 "$python" -m pytest -q -rs -s -m device tests/device
timeout 300 "$python" benchmarks/engine.py --device cuda --graphs

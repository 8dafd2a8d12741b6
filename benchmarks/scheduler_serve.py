"""The loop of a process that `benchmarks/scheduler.py` drives: numbers of steps in, CPU nanoseconds of each out."""

import gc
import json
import sys
from collections.abc import Callable

YOUNG_MAX, NEVER = 50_000, 1 << 30


def serve(step: Callable[[], int]) -> None:
    """Do windows of steps until standard input ends, under the collector as a live replica has it (live/garbage.py):
    what is there is frozen, young objects are collected when they are many, all of them only while nothing runs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, NEVER, NEVER)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)

"""The work of `simulator.py` on Vidur (github.com/microsoft/vidur), in its own environment; prints one JSON line.

Run by `simulator.py`, in the folder of a checkout: PYTHON simulator_vidur.py TRACE.csv BASE_MS TOKEN_MS METRICS. Its
lookup of operator times is replaced by the same line that Headway's truth is given, which saves it that work.
"""

import json
import os
import sys
import tempfile
import time
import types

sys.path.insert(0, os.getcwd())
for name in ("wandb", "plotly_express", "kaleido"):  # only its plots need them
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)

from vidur.config import (  # noqa: E402
    ClusterConfig,
    LORGlobalSchedulerConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.entities import Batch, ExecutionTime  # noqa: E402
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry  # noqa: E402
from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor  # noqa: E402
from vidur.simulator import Simulator  # noqa: E402
from vidur.types import ExecutionTimePredictorType  # noqa: E402

TRACE, BASE_MS, TOKEN_MS, METRICS = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "metrics"


class Line(BaseExecutionTimePredictor):
    """Base plus a time per token."""

    steps = 0

    def get_execution_time(self, batch: Batch, pipeline_stage: int) -> ExecutionTime:
        Line.steps += 1
        return ExecutionTime(1, *[0.0] * 14, BASE_MS + TOKEN_MS * batch.total_num_tokens, *[0.0] * 4)


Line.__abstractmethods__ = frozenset()
ExecutionTimePredictorRegistry._registry[ExecutionTimePredictorType.RANDOM_FORREST] = Line
with tempfile.TemporaryDirectory() as out:
    config = SimulationConfig(
        cluster_config=ClusterConfig(
            num_replicas=16,
            replica_config=ReplicaConfig(model_name="meta-llama/Meta-Llama-3-8B", device="a100"),
            global_scheduler_config=LORGlobalSchedulerConfig(),
            replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=512, chunk_size=512),
        ),
        request_generator_config=TraceRequestGeneratorConfig(trace_file=TRACE, max_tokens=16384),
        metrics_config=MetricsConfig(
            write_metrics=METRICS,
            write_json_trace=False,
            enable_chrome_trace=False,
            store_plots=False,
            output_dir=out,
        ),
    )
    simulator = Simulator(config)
    began = time.process_time()
    simulator.run()
    took = time.process_time() - began
    print(json.dumps({"seconds": took, "steps": Line.steps, "simulated_s": simulator._time}), flush=True)
    os._exit(0)  # its exit hook writes plots

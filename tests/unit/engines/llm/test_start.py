from pathlib import Path

import pytest
import torch

from headway.core.errors import ConfigError
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings
from headway.engines.llm.start import start_engine

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def settings(folder: Path) -> EngineSettings:
    return EngineSettings(folder=folder, model="tiny", cache=folder, kv_blocks=8, kernels="torch", dtype="float32")


@without_cuda
def test_refuses_a_device_that_is_not_there(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="device = cuda: torch sees no CUDA device"):
        start_engine(settings(tiny_folder), "cuda", lambda: 0)


@without_cuda
def test_auto_takes_the_cpu_where_there_is_no_device(tiny_folder: Path) -> None:
    engine = start_engine(settings(tiny_folder), "auto", lambda: 0)
    assert (type(engine), engine.limits.device) == (TorchLlmEngine, "cpu")

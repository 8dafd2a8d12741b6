"""The diffusion engine on a CUDA device, on tiny random pipelines.  # never run on a device

In bfloat16, which CUDA is served in, beside float32 on the CPU. `benchmarks/device.sh` runs it.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
with warnings.catch_warnings():  # what the libraries say at import is theirs
    warnings.simplefilter("ignore")
    pytest.importorskip("diffusers")
    pytest.importorskip("av")

import msgspec  # noqa: E402
from tests.unit.engines.diffusion.asks import asked, made, pixels, run, video  # noqa: E402
from tests.unit.engines.diffusion.pipelines import PIPELINES  # noqa: E402

from headway.core.artifacts import Made  # noqa: E402
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise  # noqa: E402
from headway.core.request import DiffusionRequest  # noqa: E402
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings  # noqa: E402
from headway.engines.diffusion.loading import LoadSettings, load  # noqa: E402

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
FAMILIES = ("flux", "wan")
# bfloat16 has 8 bits: a step of a prediction errs by 1/256 of it, four guided ones (scale 3) by a few per cent of the
# range of a pixel. A wrong kernel, order or shape gives an unrelated picture, whose mean difference is tens of levels.
MEAN_LEVELS = 8.0
Make = Callable[..., DiffusionEngine]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root, made = tmp_path_factory.mktemp("pipelines"), {}
    for family in FAMILIES:
        torch.manual_seed(0)
        made[family] = root / family
        PIPELINES[family]().save_pretrained(made[family])
    return made


@pytest.fixture
def engine(folders: dict[str, Path]) -> Make:
    def make(family: str, device: str = "cuda", dtype: str = "auto") -> DiffusionEngine:
        settings = LoadSettings(folders[family], device=device, dtype=dtype)  # type: ignore[arg-type]  # literals
        return DiffusionEngine(load(settings), RunSettings(), lambda: 0)

    return make


def request(family: str, **fields: object) -> DiffusionRequest:
    return video(**fields) if family == "wan" else asked(**fields)


def frames(family: str, one: Made) -> np.ndarray:
    """uint8 [frames, height, width, 3]."""
    if family != "wan":
        return pixels(one.body)[None]
    import av

    with av.open(io.BytesIO(one.body)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_on_the_device_is_near_float32_on_the_cpu(family: str, engine: Make) -> None:
    ours = engine(family)
    assert "bfloat16" in ours.description
    there = frames(family, made(ours, request(family))[0]).astype(float)
    here = frames(family, made(engine(family, "cpu", "float32"), request(family))[0])
    other = frames(family, made(engine(family, "cpu", "float32"), request(family, seed=6))[0])
    away = np.abs(there - here).mean()
    sys.stdout.write(
        f"{family}: mean difference {away:.2f} of 255, to another seed {np.abs(there - other).mean():.2f}\n"
    )
    assert away < MEAN_LEVELS
    assert away < np.abs(there - other).mean() / 2


# SPEC F6
@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_goes_on_bit_for_bit_from_its_checkpoint(family: str, engine: Make) -> None:
    whole = made(engine(family), request(family))[0].body
    assert made(engine(family), request(family))[0].body == whole  # else nothing can be said of a resume
    saved = run(engine(family), [request(family)], count=2, save=(0,)).made[0].made[0].body
    rest = msgspec.structs.replace(request(family), begun=2, checkpoint=saved)
    assert made(engine(family), rest)[0].body == whole


# SPEC F6
def test_a_row_that_gave_way_in_the_engine_goes_on_bit_for_bit(engine: Make) -> None:
    one = engine("flux")
    whole = made(engine("flux"), asked())[0].body
    run(one, [asked()], count=2)
    other = msgspec.structs.replace(asked(seed=9), id="req-2")
    row = DenoiseRow(7, 0, other.steps, other.steps)
    assert not one.run(DenoisePlan(2, 1, (row,), 32, 32, new=(NewDenoise(7, other),))).failed
    rest = one.run(DenoisePlan(3, 2, (DenoiseRow(0, 2, 2, 4),), 32, 32))
    assert rest.made[0].made[0].body == whole


def test_out_of_memory_fails_its_row_and_leaves_the_engine_alive(engine: Make) -> None:  # vllm-omni#2327
    one = engine("flux")
    whole = made(one, asked())[0].body
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (total - free + (64 << 20)) / total))
    try:
        done = run(one, [asked(height=2048, width=2048, n=8)])
        assert [failure.code for failure in done.failed] == ["out_of_memory"]
        assert one.held == 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert made(one, asked())[0].body == whole

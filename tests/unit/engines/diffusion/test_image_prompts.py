"""Image prompts through an IP-Adapter: the pipeline's own pixels, embeddings encoded once, and what is refused."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.engines.diffusion.asks import asked, made, picture, pixels, run
from tests.unit.engines.diffusion.fresh import Fresh
from tests.unit.engines.diffusion.ip_adapters import save_adapter
from tests.unit.engines.diffusion.test_equality import HOW, NEGATIVE, PROMPT

from headway.core.artifacts import BAD_CHECKPOINT, BAD_INPUT
from headway.core.errors import ConfigError
from headway.core.ids import TenantId
from headway.core.request import Content, DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.ip_adapter import AdapterSettings
from headway.engines.diffusion.loading import Loaded, LoadSettings, load
from headway.engines.diffusion.start import StageCounts, start_engine

Make = Callable[..., DiffusionEngine]
Save = Callable[..., Path]
SHOWN, OTHER = picture(40, 3), picture(24, 7)  # larger and smaller than the encoder's 30 pixels


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("adapter") / "ip")


@pytest.fixture(scope="module")
def adapted(saved: Save, adapter: Path) -> Callable[[str], Loaded]:
    """A pipeline with the adapter, loaded once."""
    kept: dict[str, Loaded] = {}

    def one(family: str) -> Loaded:
        if family not in kept:
            kept[family] = load(LoadSettings(saved(family), device="cpu", adapter=AdapterSettings(adapter)))
        return kept[family]

    return one


@pytest.fixture
def painter(adapted: Callable[[str], Loaded]) -> Make:
    """A fresh engine on it."""
    return lambda family="flux", **settings: DiffusionEngine(adapted(family), RunSettings(**settings), ticking())


def ticking() -> Callable[[], int]:
    ticks = iter(range(10**9))
    return lambda: next(ticks)


def shown(body: bytes = SHOWN, scale: float = 0.7, **fields: Any) -> DiffusionRequest:
    said = fields.pop("content", Content(PROMPT, NEGATIVE))
    said = msgspec.structs.replace(said, image_prompts=(body,))
    return asked(**{"content": said, "image_prompts": 1, "image_prompt_scale": scale, **fields})


def piped(saved: Save, adapter: Path, family: str, scale: float | None, cls: Any = None, **how: Any) -> np.ndarray:
    """What a pipeline of its own makes, without an adapter where `scale` is None."""
    pipe = (cls or diffusers.FluxPipeline).from_pretrained(saved(family))
    pipe.set_progress_bar_config(disable=True)
    if scale is not None:
        encoder = {"image_encoder_pretrained_model_name_or_path": str(adapter / "image_encoder")}
        pipe.load_ip_adapter(
            str(adapter), weight_name="ip_adapter.safetensors", image_encoder_dtype=torch.float32, **encoder
        )
        pipe.set_ip_adapter_scale(scale)
        how["ip_adapter_image"] = Image.fromarray(pixels(SHOWN))
    given = {"height": 32, "width": 32, "num_inference_steps": 4, "generator": torch.Generator().manual_seed(5), **how}
    return (pipe(PROMPT, output_type="np", return_dict=False, **given)[0][0] * 255).round().astype("uint8")


@contextmanager
def encodes(engine: DiffusionEngine) -> Iterator[list[int]]:
    """Pictures of each pass of its image encoder from now on."""
    passes: list[int] = []
    module = engine._loaded.pipeline.image_encoder
    hook = module.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    try:
        yield passes
    finally:
        hook.remove()


# The pipeline's own


# SPEC F1, G2
@pytest.mark.parametrize("scale", [0.7, 0.0, 1.5])
def test_a_picture_with_an_image_prompt_is_the_pipelines_own(
    scale: float, painter: Make, saved: Save, adapter: Path
) -> None:
    ours = pixels(made(painter(), shown(scale=scale))[0].body)
    assert np.array_equal(ours, piped(saved, adapter, "flux", scale, **HOW["flux"]))
    plain = pixels(made(painter(), asked(content=Content(PROMPT, NEGATIVE)))[0].body)
    assert np.array_equal(ours, plain) is (scale == 0.0)


# SPEC F1
def test_it_is_so_in_one_pass_and_with_several_pictures_and_sizes(painter: Make, saved: Save, adapter: Path) -> None:
    size = {"height": 48, "width": 32}
    ours = pixels(made(painter(), shown(**size))[0].body)
    assert np.array_equal(ours, piped(saved, adapter, "flux", 0.7, **HOW["flux"], **size))
    ours = pixels(made(painter("flux-distilled"), shown(content=Content(PROMPT)))[0].body)
    assert np.array_equal(ours, piped(saved, adapter, "flux-distilled", 0.7, **HOW["flux-distilled"]))
    several = made(painter(), shown(n=2, deterministic=False))
    alone = [made(painter(), shown(seed=seed))[0].body for seed in (5, 6)]
    for one, other in zip(several, alone, strict=True):
        assert np.abs(pixels(one.body).astype(int) - pixels(other)).max() <= 1


# SPEC F1
def test_an_edit_with_an_image_prompt_is_the_pipelines_own(painter: Make, saved: Save, adapter: Path) -> None:
    body = picture()
    ours = made(painter(), shown(strength=0.5, content=Content(PROMPT, NEGATIVE, pictures=(body,))))[0].body
    how = {**HOW["flux"], "image": Image.fromarray(pixels(body)), "strength": 0.5}
    theirs = piped(saved, adapter, "flux", 0.7, diffusers.FluxImg2ImgPipeline, **how)
    assert np.array_equal(pixels(ours), theirs)


# SPEC F1: attention with an adapter cannot run without a picture
def test_without_an_image_prompt_the_same_engine_paints_as_without_an_adapter(
    painter: Make, saved: Save, adapter: Path
) -> None:
    one, plain = painter(), asked(content=Content(PROMPT, NEGATIVE))
    theirs = piped(saved, adapter, "flux", None, **HOW["flux"])
    for _ in range(2):
        assert np.array_equal(pixels(made(one, plain)[0].body), theirs)
        assert not np.array_equal(pixels(made(one, shown())[0].body), theirs)


# Batches


# SPEC F4
def test_rows_of_other_pictures_share_a_pass_and_other_scales_do_not(painter: Make) -> None:
    loose = {"deterministic": False}
    requests = [
        shown(**loose),
        shown(OTHER, seed=9, **loose),
        shown(scale=0.2, **loose),
        asked(content=Content(PROMPT, NEGATIVE), **loose),
    ]
    one, passes = painter(), []
    forward = one._loaded.pipeline.transformer.forward

    def counting(**named: Any) -> Any:
        passes.append((len(named["hidden_states"]), "ip_adapter_image_embeds" in named["joint_attention_kwargs"]))
        return forward(**named)

    one._loaded.pipeline.transformer.forward = counting
    try:
        done = run(one, requests)
    finally:
        del one._loaded.pipeline.transformer.forward
    assert not done.failed, done.failed
    assert passes == [(4, True), (2, True), (2, False)] * 4  # both passes of guidance are one here
    for row, request in zip(done.made, requests, strict=True):
        alone = made(painter(), msgspec.structs.replace(request, deterministic=True))[0].body
        assert np.abs(pixels(row.made[0].body).astype(int) - pixels(alone)).max() <= 1


# The cache


# SPEC G2
def test_a_picture_is_encoded_once_for_all_tenants_and_leads_to_the_same_bytes(painter: Make) -> None:
    one = painter()
    with encodes(one) as passes:
        first = run(one, [shown()])
        assert passes == [1, 1]  # itself, and the black one of the pass that guides
        again = run(one, [shown(tenant=TenantId("another"))])
        assert passes == [1, 1]
        run(one, [shown(OTHER)])
        assert passes == [1, 1, 1]
    assert first.made[0].made[0].body == again.made[0].made[0].body
    assert first.stages is not None
    assert again.stages is not None
    assert first.stages.text_encode_ns > first.stages.image_encode_ns > 0
    assert (first.stages.image_hits, again.stages.image_hits) == (0, 2)
    assert (first.stages.text_hits, again.stages.text_hits) == (0, 2)  # apart from those of words


# SPEC G2
def test_it_is_not_mistaken_for_what_another_encoder_saw(
    saved: Save, adapted: Callable[[str], Loaded], adapter: Path, tmp_path: Path
) -> None:
    other = save_adapter(tmp_path / "other", seed=1)
    mixed = AdapterSettings(adapter, other / "image_encoder")
    found = load(LoadSettings(saved("flux"), device="cpu", adapter=mixed))
    assert found.image_hash != adapted("flux").image_hash
    assert found.model_hash != adapted("flux").model_hash
    weights = load(LoadSettings(saved("flux"), device="cpu", adapter=AdapterSettings(other, adapter / "image_encoder")))
    assert weights.image_hash == adapted("flux").image_hash
    assert weights.model_hash != adapted("flux").model_hash


# SPEC G2
def test_without_room_rows_that_live_together_share_it_and_it_goes_with_them(painter: Make) -> None:
    one = painter(cache_mb=0)
    with encodes(one) as passes:
        run(one, [shown(), shown(seed=6)], count=2)
        assert passes == [1, 1]
        assert one.embeddings.bytes == 0
        run(one, [shown(), shown(seed=6)], start=2, count=2)
        gc.collect()
        assert not one._beginner.images._held
        run(one, [shown()])
        assert passes == [1, 1, 1, 1]


# SPEC G2
def test_what_is_kept_of_pictures_counts_with_the_words(painter: Make) -> None:
    one = painter()
    run(one, [asked(content=Content(PROMPT, NEGATIVE))])
    words = one.embeddings.bytes
    done = run(one, [shown()])
    assert done.cached_bytes == words + 2 * 24 * 4  # two embeddings of 24 floats
    assert len(one.embeddings) == 4


# Checkpoints

RESUME = """
import sys, msgspec
from pathlib import Path
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.ip_adapter import AdapterSettings
from headway.engines.diffusion.loading import LoadSettings, load
request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=DiffusionRequest)
settings = LoadSettings(Path(sys.argv[1]), device="cpu", adapter=AdapterSettings(Path(sys.argv[2])))
engine = DiffusionEngine(load(settings), RunSettings(), lambda: 0)
row = DenoiseRow(0, request.begun, request.steps - request.begun, request.steps, request.n)
done = engine.run(DenoisePlan(1, 0, (row,), request.height, request.width, new=(NewDenoise(0, request),)))
assert not done.failed, done.failed
assert engine.embeddings.misses == engine._beginner.images.misses == 0
sys.stdout.buffer.write(done.made[0].made[0].body)
"""


def interrupted(engine: DiffusionEngine, request: DiffusionRequest, at: int = 2) -> DiffusionRequest:
    checkpoint = run(engine, [request], count=at, save=(0,)).made[0].made[0].body
    return msgspec.structs.replace(request, begun=at, checkpoint=checkpoint)


# SPEC F6
def test_a_fresh_process_goes_on_bit_for_bit_and_encodes_nothing(
    painter: Make, saved: Save, adapter: Path, fresh: Fresh
) -> None:
    whole = made(painter(), shown())[0].body
    order = msgspec.msgpack.encode(interrupted(painter(), shown()))
    assert fresh.run(RESUME, str(saved("flux")), str(adapter), given=order) == whole


# SPEC F6
@pytest.mark.parametrize("change", ["picture", "scale", "none"])
def test_a_checkpoint_of_another_image_prompt_is_refused(change: str, painter: Make) -> None:
    request = interrupted(painter(), shown())
    said = msgspec.structs.replace(request.content, image_prompts=(OTHER,))
    bare = msgspec.structs.replace(request.content, image_prompts=())
    other = {
        "picture": {"content": said},
        "scale": {"image_prompt_scale": 0.8},
        "none": {"content": bare, "image_prompts": 0},
    }[change]
    done = run(painter(), [msgspec.structs.replace(request, **other)], start=2, count=2)
    assert [failure.code for failure in done.failed] == [BAD_CHECKPOINT]


# Refusals


# SPEC F1
def test_a_model_without_an_adapter_refuses_image_prompts_before_it_works(engine: Make) -> None:
    one = engine("flux")
    done = run(one, [shown()])
    assert [failure.code for failure in done.failed] == [BAD_INPUT]
    assert "ip_adapter" in done.failed[0].message
    assert one.embeddings.misses == 0


# SPEC F1
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (shown(b"no picture"), "no PNG"),
        (shown(image_prompts=0), "0 image prompts are announced and 1"),
        (asked(image_prompts=1), "1 image prompts are announced and 0"),
        (asked(image_prompts=2, content=Content(PROMPT, image_prompts=(SHOWN, OTHER))), "this model takes one"),
        (asked(control_nets=("edge",)), "control nets"),
    ],
)
def test_what_is_wrong_with_an_image_prompt_is_told_of_its_row_alone(
    request_: DiffusionRequest, words: str, painter: Make
) -> None:
    done = run(painter(), [request_, shown()])
    assert [(failure.seq, failure.code) for failure in done.failed] == [(0, BAD_INPUT)]
    assert words in done.failed[0].message
    assert [row.seq for row in done.made] == [1]


# SPEC F1
def test_an_adapter_that_cannot_be_used_ends_the_start(saved: Save, adapter: Path, tmp_path: Path) -> None:
    def loading(family: str, weights: Path, image_encoder: Path | None = None) -> Loaded:
        return load(LoadSettings(saved(family), device="cpu", adapter=AdapterSettings(weights, image_encoder)))

    with pytest.raises(ConfigError, match="StableDiffusion3Pipeline, which takes no ip_adapter"):
        loading("sd3", adapter)
    with pytest.raises(ConfigError, match=r"holds 0 \.safetensors files"):
        loading("flux", tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "weights.safetensors").write_bytes((adapter / "ip_adapter.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="needs an image_encoder"):
        loading("flux", bare)
    assert loading("flux", bare / "weights.safetensors", adapter / "image_encoder").image_hash
    with pytest.raises(ConfigError, match="cannot be loaded"):
        loading("flux", saved("flux") / "vae", adapter / "image_encoder")


# SPEC G1: pictures are encoded in the engine's own process, whoever encodes words
def test_words_that_another_process_encodes_have_a_picture_beside_them(
    saved: Save, adapter: Path, painter: Make
) -> None:
    settings = LoadSettings(saved("flux"), device="cpu", adapter=AdapterSettings(adapter))
    one = start_engine(settings, RunSettings(), StageCounts(text=1), lambda: 0)
    try:
        assert made(one, shown())[0].body == made(painter(), shown())[0].body
    finally:
        one.close()


# SPEC F1: diffusers loads the projection in float32, and on the CPU
def test_in_bfloat16_all_of_the_adapter_is(saved: Save, adapter: Path) -> None:
    settings = LoadSettings(saved("flux"), device="cpu", dtype="bfloat16", adapter=AdapterSettings(adapter))
    found = load(settings)
    made(DiffusionEngine(found, RunSettings(), lambda: 0), shown())
    pipe = found.pipeline
    parts = (pipe.image_encoder, pipe.transformer.encoder_hid_proj, pipe.transformer.transformer_blocks[0].attn)
    assert {parameter.dtype for part in parts for parameter in part.parameters()} == {torch.bfloat16}

"""Models of pictures and videos: what they may be, and what the gateway and their replicas are told."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.live.test_config_models import given

from headway.core.errors import ConfigError
from headway.core.plans import DenoisePlan, DenoiseRow
from headway.core.request import DenoiseShape
from headway.cost.diffusion import step_ns
from headway.cost.diffusion_memory import decode_bytes
from headway.engines.synthetic.denoise import SyntheticDenoiser
from headway.live.adapter_paths import check_adapter
from headway.live.config import Config
from headway.live.config_diffusion import (
    DiffusionSettings,
    believed_cost,
    denoiser_params,
    diffusion_spec,
    picture_card,
)
from headway.live.config_diffusion_checks import check_diffusion
from headway.live.launch import find_models, plan
from headway.live.size_pools import SizePool
from headway.sched.diffusion.params import DiffusionParams, ShapeCap, StageWatchdog, Watchdog

PAINTER = "{engine='synthetic', name='painter', replicas=2, edits=false}"
TWO = f"diffusion=[{PAINTER}, {{engine='synthetic', name='filmer', fps=4, seconds=[4]}}]"


def configured(*assignments: str) -> Config:
    return given("engine.kind=synthetic", *assignments).config


def test_replicas_of_all_kinds_are_numbered_through() -> None:
    config = configured(TWO)
    started = plan(config, find_models(config, lambda line: None))
    assert [(spec.node, spec.model, spec.diffusion is None) for spec in started.replicas] == [
        ("rep-0", "synthetic", True),
        ("rep-1", "painter", False),
        ("rep-2", "painter", False),
        ("rep-3", "filmer", False),
    ]


def test_clients_are_told_what_each_makes() -> None:
    config = configured(TWO)
    painter, filmer = plan(config, ()).pictures
    assert (painter.modalities, filmer.modalities) == (("image",), ("video",))
    assert painter.pictures is not None
    assert not painter.pictures.edits
    assert filmer.pictures is not None
    assert (filmer.pictures.fps, filmer.pictures.seconds) == (4, (4,))


def test_pictures_alone_can_be_served() -> None:
    resolved = given("engine.kind=synthetic", "model.replicas=0", TWO, "supervisor.restarts_max=1")
    assert len(plan(resolved.config, ()).replicas) == 3
    told = [adjustment.key for adjustment in resolved.adjustments]
    assert "supervisor.restarts_max" not in told  # replicas have supervisors, whatever they run


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("name='synthetic'", "both called 'synthetic'"),
        ("name='a'}, {engine='synthetic', name='a'", "both called 'a'"),
        ("name='a', size='64'", "diffusion[0].size has '64'"),
        ("name='a', size='60x60'", "multiples"),
        ("name='a', size='16x16'", "side_min = 32"),
        ("name='a', size='64x64', sizes=['96x64']", "none of diffusion[0].sizes"),
        ("name='a', sizes=['64x64', '4096x4096']", "pixels_max"),
        ("name='a', pixels_max=18641352", "lower it to 18641351"),
        ("name='a', steps=300", "above diffusion[0].steps_max = 200"),
        ("name='a', masks=true, edits=false", "masks needs diffusion[0].edits"),
        ("name='a', seconds=[]", "seconds is empty"),
        ("name='a', guided_passes=1, guidance_scale=0", "an input of the model"),
        ("name='a', stepz=3", "stepz"),
        ("name='a', scheduler={order={type='fifoo'}}", "in diffusion[0].scheduler: "),
        ("name='a', encode_processes=1", "encode_processes and decode_processes need diffusion[0].engine = 'torch'"),
        ("name='a', decode_processes=1", "need diffusion[0].engine = 'torch'"),
        ("name='a', ip_adapter='x'", "diffusion[0].ip_adapter = 'x' needs diffusion[0].folder"),
        ("name='a', image_encoder='x'", "belongs to diffusion[0].ip_adapter, which is unset"),
        ("name='a', image_prompt_scale=3", "image_prompt_scale"),
        ("name='a', stage_watchdog={factor=6}", "above half of diffusion[0].scheduler.watchdog.factor = 10"),
        ("fps=3", "name"),
    ],
)
def test_what_cannot_be_served_is_refused_by_key(fields: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(f"diffusion=[{{engine='synthetic', {fields}}}]")
    assert words in str(caught.value)


@pytest.mark.parametrize("fields", ["name='a'", "name='a', folder='nowhere'", "name='a', folder='FOLDER'"])
def test_a_model_needs_a_folder_with_a_pipeline(fields: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"diffusion\[0\]\.folder"):
        configured(f"diffusion=[{{{fields.replace('FOLDER', str(tmp_path))}}}]")
    with pytest.raises(ConfigError, match="leave it out"):
        configured("diffusion=[{name='a', engine='synthetic', folder='x'}]")


# SPEC F1
# SPEC F1
def test_the_router_is_told_of_each_replica_what_its_model_can_do() -> None:
    film = DiffusionSettings(name="a", engine="synthetic", size="64x64", fps=4, edits=False, frame_stride=4)
    told = diffusion_spec(film).stock.abilities
    assert told is not None
    assert (told.makes_videos, told.edits, told.image_prompts, told.chunks, told.frame_stride) == (
        True,
        False,
        False,
        False,
        4,
    )
    still = diffusion_spec(
        DiffusionSettings(name="a", engine="synthetic", sizes=("64x96",), guided_passes=1)
    ).stock.abilities
    assert still is not None
    assert (still.makes_videos, still.negative_prompts, still.sizes) == (False, False, ((96, 64),))


def test_an_adapter_is_told_to_clients_and_to_the_replica(tmp_path: Path) -> None:
    weights, encoder = tmp_path / "ip.safetensors", tmp_path / "encoder"
    model = DiffusionSettings(name="a", folder="x", size="64x64", ip_adapter=str(weights), image_prompt_scale=0.5)
    for key in ("ip_adapter", "image_encoder"):
        with pytest.raises(ConfigError, match=rf"k\.{key} = "):
            check_adapter("k", str(weights), str(encoder), is_able=True)
        weights.touch()
    encoder.mkdir()
    (encoder / "config.json").touch()
    check_adapter("k", str(weights), str(encoder), is_able=True)
    for has, scale in ((model, 0.5), (DiffusionSettings(name="a", folder="x", size="64x64"), None)):
        looks, spec = picture_card(has, 0).pictures, diffusion_spec(has)
        assert looks is not None
        assert looks.image_prompt_scale == scale
        assert spec.pipeline is not None
        assert spec.probes is not None
        assert (spec.pipeline.ip_adapter, spec.probes.image_prompts) == (has.ip_adapter, has is model)


def test_a_plan_may_take_as_long_as_a_stage_that_is_replaced() -> None:
    # SPEC G1
    model = DiffusionSettings(name="a", folder="x", size="64x64")
    for stage in ("text", "encode", "decode"):
        split = replace(model, **{f"{stage}_processes": 1})
        spec = diffusion_spec(split)
        watchdog = spec.machine.watchdog
        assert spec.pipeline is not None
        assert getattr(spec.pipeline, f"{stage}_processes") == 1
        assert watchdog is not None
        assert watchdog.more_s == StageWatchdog().more_s == 180.0
        assert spec.probes is not None
        assert not spec.probes.is_own_work  # its thread waits for others
        assert diffusion_spec(replace(split, stage_watchdog=None)).machine.watchdog == Watchdog()
    assert diffusion_spec(model).machine.watchdog == Watchdog()


# SPEC G1
@pytest.mark.parametrize(("fields", "words"), [({"fps": 4}, "fps makes videos"), ({"edits": False}, "edits = false")])
def test_processes_that_would_encode_nothing_are_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    model = DiffusionSettings(name="a", folder=str(tmp_path), size="64x64", encode_processes=1, **fields)
    with pytest.raises(ConfigError, match=f"encode_processes = 1 has nothing to encode: .*{words}"):
        check_diffusion((model,))


def test_every_shape_that_is_named_is_run_before_ready() -> None:
    # SPEC F8
    model = DiffusionSettings(name="a", folder="x", sizes=("64x64", "128x96", "96x64"), steps=8)
    spec = diffusion_spec(model)
    assert spec.pipeline is not None
    assert Path(spec.pipeline.folder).is_absolute()
    assert spec.probes is not None
    sides = [(64, 64), (96, 128), (64, 96)]
    assert spec.probes.batches == tuple((DenoiseShape(height, width, passes=2), 4) for height, width in sides)
    film = diffusion_spec(DiffusionSettings(name="a", folder="x", size="64x64", fps=4, guidance_scale=1.0)).probes
    assert film is not None
    assert [(shape.frames, shape.passes) for shape, _largest in film.batches] == [(16, 1), (32, 1), (48, 1)]
    assert (film.form, film.fps) == ("mp4", 4)


def test_a_shape_is_run_in_the_largest_batch_that_its_caps_let_form() -> None:
    # SPEC F8
    caps = (ShapeCap(height=96, width=128, batch_max=3),)
    scheduler = DiffusionParams(batch_max=12, caps=caps, batch_pixels_max=8 * 64 * 64)
    probes = diffusion_spec(
        DiffusionSettings(name="a", folder="x", sizes=("64x64", "128x96", "256x128"), scheduler=scheduler)
    ).probes
    assert probes is not None
    assert [largest for _shape, largest in probes.batches] == [8, 2, 1]


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_model_without_guidance_makes_one_pass_where_a_request_says_nothing(scale: float) -> None:
    # SPEC F1; 0 inside stands for the pipeline's own, 7 of Stable Diffusion 3
    model = DiffusionSettings(name="a", folder="x", size="64x64", guidance_scale=scale)
    assert believed_cost(model).passes == 1
    spec, looks = diffusion_spec(model), picture_card(model, 0).pictures
    assert spec.pipeline is not None
    assert looks is not None
    assert spec.stock.abilities is not None
    assert spec.pipeline.guidance_scale == looks.guidance_scale == 1.0
    assert not spec.stock.abilities.is_guided


def test_the_virtual_device_is_believed_to_take_what_it_takes() -> None:
    model = DiffusionSettings(name="a", engine="synthetic")
    rows = tuple(DenoiseRow(seq, 0, 1, 9) for seq in range(3))
    shape = DenoiseShape(128, 64, passes=1)
    taken_ns = SyntheticDenoiser(denoiser_params(model)).batch_ns(DenoisePlan(1, 0, rows, 128, 64, shape=shape))
    assert step_ns(believed_cost(model), shape, 3) == pytest.approx(taken_ns)


def test_the_card_names_the_size_of_a_request_that_names_none() -> None:
    card = picture_card(DiffusionSettings(name="a", size="128x64"), 7)
    assert card.pictures is not None
    assert (card.created, card.pictures.size) == (7, "128x64")


def test_replicas_of_a_pool_take_and_warm_its_sizes_and_know_those_of_the_others() -> None:
    # SPEC F5, F8
    pools = (SizePool(2, pixels_max=64 * 64), SizePool(1, pixels_min=64 * 64 + 1))
    model = DiffusionSettings(name="a", folder="x", sizes=("64x64", "128x96"), replicas=3, pools=pools)
    specs = [diffusion_spec(model, place) for place in range(3)]
    limits = [(spec.machine.pixels_min, spec.machine.pixels_max) for spec in specs]
    assert limits == [(0, 4096), (0, 4096), (4097, None)]
    assert all(spec.probes is not None for spec in specs)
    assert [[shape.width for shape, _ in spec.probes.batches] for spec in specs if spec.probes] == [[64], [64], [128]]
    assert {len(spec.stock.shapes) for spec in specs} == {2}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("replicas=2, pools=[{}]", "let them add up"),
        ("pools=[{pixels_max=1000}]", "none takes 64x64"),
        ("pools=[{}], scheduler={pixels_min=1}", "leave the latter out"),
        ("pools=[{pixels_min=9000, pixels_max=8000}]", "is above pixels_max"),
    ],
)
def test_pools_that_do_not_add_up_are_refused(fields: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(f"diffusion=[{{name='a', engine='synthetic', {fields}}}]")


def test_moves_between_pools_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.shape_pools"):
        configured("diffusion=[{name='a', engine='synthetic'}]", "fleet.shape_pools={}")


def test_memory_that_is_said_bounds_the_work_of_every_replica() -> None:
    model = DiffusionSettings(name="a", folder="x", memory_mb=2, sizes=("64x64",))
    pipeline = diffusion_spec(model, 0, 3).pipeline
    assert pipeline is not None
    assert (pipeline.memory_bytes, pipeline.pictures_max, pipeline.sharers) == (2 << 20, 4, 3)
    virtual = diffusion_spec(DiffusionSettings(name="a", engine="synthetic", memory_mb=2)).memory
    assert virtual is not None
    assert virtual.room == 2 << 20
    assert decode_bytes(virtual, DenoiseShape(1000, 1000), 1) == 64 << 20  # of a megapixel

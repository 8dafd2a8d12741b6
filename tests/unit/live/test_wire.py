import msgspec
import pytest

from headway.core.events import Proposal
from headway.core.ids import GroupId, ModelId, NodeId, RequestId, TenantId, TransferId
from headway.core.messages import Submit, Tokens
from headway.core.plans import CopyPlan, StepTiming
from headway.core.reports import GarbageFigures
from headway.core.request import (
    Content,
    DiffusionRequest,
    LlmRequest,
    LoraUse,
    SamplingParams,
    Slo,
    TraceContext,
)
from headway.live.wire import (
    FRAME_BYTES_MAX,
    LENGTH_BYTES,
    Beat,
    Blocks,
    Envelope,
    Frame,
    Gather,
    Hello,
    Spans,
    StepSpan,
    WireError,
    copies,
    decode,
    encode,
)

REQUEST = LlmRequest(
    RequestId("req-1"),
    TenantId("t"),
    ModelId("m"),
    (1, 2),
    SamplingParams(max_tokens=3),
    arrived_ns=5,
    block_hashes=(b"\x00\xff",),
)
FRAMES: list[Frame] = [
    Hello(NodeId("rep-1"), 2),
    Beat(7),
    Beat(8, GarbageFigures(3, 40, 1, 20, 20)),
    Envelope(NodeId("front"), NodeId("rep-1"), Submit(REQUEST, 1, number=4)),
    Envelope(
        NodeId("front"),
        NodeId("rep-2"),
        Submit(DiffusionRequest(RequestId("req-2"), TenantId("t"), ModelId("m"), 4, 64, 64, 1, 0), 1),
    ),
    Envelope(NodeId("rep-1"), NodeId("front"), Tokens((RequestId("req-1"),), (1,), (0,), (9,), 3)),
    Blocks(NodeId("a"), NodeId("b"), TransferId("x"), 0, -1, (1, 2), b"\x01\x02", last=True),
    Gather(GroupId("g"), 3, Proposal("decode", 1, 1), 9),
    Spans((StepSpan(1, "decode", 2, 9, 0, 0, 3, StepTiming(4, 5, 6)),)),
]

PAINTED = DiffusionRequest(
    id=RequestId("img_1"),
    tenant=TenantId("t"),
    model=ModelId("m"),
    steps=4,
    height=64,
    width=96,
    seed=2**62,
    arrived_ns=5,
    slo=Slo(e2e_deadline_ns=9),
    urgency=-1,
    frames=17,
    fps=4,
    guidance_scale=2.5,
    passes=2,
    n=3,
    reference_tokens=7,
    strength=0.25,
    loras=(LoraUse("outline", 0.0), LoraUse("neon", 0.5)),
    control_nets=("edge",),
    image_prompts=1,
    image_prompt_scale=0.5,
    solver="unipc",
    quality="high",
    dtype="float32",
    deterministic=True,
    content=Content("größer", "blue", (b"\x89PNG", b"\xff\xd8"), b"mask", "webp", 60, 2, b"latents", (b"RIFF",)),
    begun=2,
    checkpoint=b"\x00\x01",
    save_every=3,
    tenant_weight=2,
    allow_degrade=("steps",),
    trace=TraceContext("a", "b", None, True, "image_generation"),
    given_frames=5,
    hand_on=2,
    played_ns=7,
)


def test_no_field_of_a_picture_is_lost_on_the_way_to_its_replica() -> None:
    # vllm-omni#4900: extras were lost between processes; vllm-omni#2149: scale 0 is not absent
    for struct in (PAINTED, PAINTED.content):
        for field in msgspec.structs.fields(type(struct)):
            assert getattr(struct, field.name) != field.default, f"{field.name} has its default: the claim is empty"
    frame = Envelope(NodeId("front"), NodeId("rep-2"), Submit(PAINTED, 1))
    assert decode(encode(frame)[LENGTH_BYTES:]) == frame


def test_a_frame_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(WireError, match="limit"):
        encode(Blocks(NodeId("a"), NodeId("b"), TransferId("x"), 0, -1, (), bytes(FRAME_BYTES_MAX), last=True))


def test_a_copy_is_split_so_that_every_part_fits_a_frame() -> None:
    plan = CopyPlan(TransferId("x"), 0, NodeId("b"), tuple(range(10)), tuple(range(100, 110)))
    parts = copies(plan, FRAME_BYTES_MAX // 8)
    assert [len(source) for source, _ in parts] == [4, 4, 2]
    assert tuple(block for _, part in parts for block in part) == plan.dst_blocks


def test_an_empty_copy_still_says_that_it_is_complete() -> None:
    assert copies(CopyPlan(TransferId("x"), 0, NodeId("b"), (), ()), 1024) == [((), ())]

"""Checkpoints whose header is damaged are refused as checkpoints, so that the job begins anew (SPEC F6, H3)."""

import random

import msgspec
import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.rows import FORMAT, BadCheckpoint, fingerprint, read

MODEL = b"weights"
REQUEST = msgspec.structs.replace(
    DiffusionRequest(RequestId("r-1"), TenantId("t"), ModelId("m"), 10, 32, 32, 8, 0), begun=3
)


def written(**words: str) -> bytes:
    said = {"format": FORMAT, "done": "3", "request": fingerprint(REQUEST, MODEL), "solver": "{}", **words}
    return bytes(safetensors.torch.save({"latents": torch.zeros(4)}, said))


def with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def load(body: bytes) -> None:
    read(msgspec.structs.replace(REQUEST, checkpoint=body), MODEL, torch.device("cpu"))


# SPEC F6
@pytest.mark.parametrize(
    "body",
    [
        b"",
        written(done="x"),
        written(done="4"),
        written(solver="x"),
        written(solver="[1]"),
        written(format="headway-diffusion-0"),
        with_header(b'{"__metadata__":[]}'),
        with_header(b'{"__metadata__":null}'),
        with_header(b"[" * 100_000),
    ],
    ids=["empty", "steps", "other steps", "solver", "list", "format", "words", "null", "deep"],
)
def test_a_header_that_says_nonsense_is_a_bad_checkpoint(body: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        load(body)


# SPEC F6
def test_a_damaged_header_is_never_another_error() -> None:
    rng, whole = random.Random(1), written()
    load(whole)
    for _ in range(1000):
        body = bytearray(whole)
        for _ in range(rng.choice((1, 2, 5))):
            body[rng.randrange(len(body) - 16)] = rng.randrange(256)
        try:
            load(bytes(body))
        except (BadCheckpoint, SafetensorError, KeyError, TypeError):  # those that `Beginner` calls unreadable
            continue

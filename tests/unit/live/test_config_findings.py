"""One run names everything that is wrong with a configuration (SPEC M1)."""

from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.live.config import Host, layers, resolve, set_layer
from headway.live.config_findings import Findings
from headway.live.config_layers import Faults, Sourced

NO_KEYS_OR_VALUES = """
schedular.max_seqs = 4
scheduler.max_seqs = "a"
front.router = { type = "round_robin", prams = {} }
[model]
nam = "x"
replicas = -1
[[models]]
name = 3
srved_name = "y"
"""

NOTHING_FITS = """
server.processes = 3
front.quotas.nobody.requests_per_s = 3.0
front.router.type = "nope"
front.admission = { type = "predictive", params = { quantil = 0.5, window = -1 } }
front.stream_bytes_max = 1
engine = { kind = "synthetic", device = "cuda", max_model_len = 4096, kv_blocks = 2 }
front.pools = { prefill = ["rep-9"], decode = ["rep-0"] }
aliases.a = "absent"
[[diffusion]]
name = "one"
engine = "synthetic"
size = "65x64"
steps = 900
masks = true
edits = false
[[diffusion]]
name = "two"
folder = "/absent"
steps = 900
"""


def errors(text: str, folder: Path, *assignments: str) -> list[str]:
    path = folder / "headway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(layers(path, {}, [set_layer(each) for each in assignments]), Host(2))
    head, *lines = str(caught.value).replace(f"{path}", "FILE").split("\n  ")
    assert head == f"{len(lines)} errors"
    return lines


def test_everything_that_is_no_key_and_no_value_is_named(tmp_path: Path) -> None:
    found = errors(NO_KEYS_OR_VALUES, tmp_path, "engine.dtipe=auto", "jobs.previews=99")
    keys = [
        "FILE: unknown key `schedular`; did you mean `scheduler`?",
        "FILE: unknown key `front.router.prams`",
        "FILE: unknown key `model.nam`; did you mean `model.name`?",
        "FILE: unknown key `models[0].srved_name`",
        "flag --set: unknown key `engine.dtipe`",
        "FILE: key `scheduler.max_seqs`: expected integer",
        "FILE: key `model.replicas`: expected integer",
        "FILE: key `models[0].name`: expected text",
        "flag --set: key `jobs.previews`: expected integer",
    ]
    assert [key for key in keys if not any(line.startswith(key) for line in found)] == []
    assert len(found) == len(keys)


def test_everything_that_does_not_fit_together_is_named(tmp_path: Path) -> None:
    found = errors(NOTHING_FITS, tmp_path)
    words = [
        "front.router.type is 'nope'",
        "unknown key `front.admission.params.quantil`",
        "key `front.admission.params.window` of 'predictive'",
        "diffusion[0].size has 65x64",
        "diffusion[0].steps = 900 is above",
        "diffusion[0].masks needs diffusion[0].edits",
        "diffusion[1].folder = '/absent' holds no diffusers pipeline",
        "diffusion[1].steps = 900 is above",
        "front.quotas.nobody has no key",
        "server.processes = 3: only requests to upstreams are spread",
        "front.stream_bytes_max = 1 is below",
        "front.pools.prefill names rep-9",
        "engine.max_model_len = 4096 is above the",
        "aliases.a = 'absent'",
        "engine.device = cuda with engine.kind = synthetic",
    ]
    assert [word for word in words if not any(word in line for line in found)] == []
    assert len(found) == len(words)
    assert all(line.startswith("FILE: ") for line in found)


def test_one_error_stands_alone_and_one_that_is_found_twice_once() -> None:
    def fails() -> None:
        raise ConfigError("a.b = 1 is odd")

    found = Findings([Sourced("a.b", 1, "FILE")])
    assert [found.of(fails), found.of(fails), found.of(lambda: 7)] == [None, None, 7]
    with pytest.raises(Faults, match=r"^FILE: a\.b = 1 is odd$"):
        found.end()

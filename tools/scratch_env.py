"""Builds throw-away environments that hold a wheel of this tree and exactly the packages it declares.

The packages are links into the environment that runs this, so it takes a second and no network; a package that Headway
imports but does not declare is not there, and neither is torch unless it is asked for.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def build_wheel(folder: Path, root: Path = ROOT) -> Path:
    """Build a wheel of the tree into a folder; needs hatchling, no network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(root)], check=True)
    (wheel,) = folder.glob("headway-*.whl")
    return wheel


def closure(requirements: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that requirements need, with all that those need.

    Raises importlib.metadata.PackageNotFoundError for one that is not installed.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(line) for line in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = importlib.metadata.distribution(requirement.name)
        found[name] = distribution
        for line in distribution.requires or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append(needed)
    return [found[name] for name in sorted(found)]


def wheel_requirements(wheel: Path) -> list[str]:
    """Return what the wheel declares as needed, without its extras."""
    (metadata,) = importlib.metadata.distributions(name="headway", path=[str(wheel)])
    return [line for line in metadata.requires or [] if "extra ==" not in line]


def make_env(folder: Path, wheel: Path, extra: Iterable[str] = ()) -> Path:
    """Make an environment with the wheel, what it declares and extra requirements; return its `bin` folder."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    for distribution in closure([*wheel_requirements(wheel), *extra]):
        link_distribution(distribution, site)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True)
    return folder / "bin"


def link_distribution(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Link what a distribution put at the top of its site folder into another one."""
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in sorted(tops):
        source = Path(str(distribution.locate_file(top)))
        target = site / top
        if source.exists() and not target.exists():
            target.symlink_to(source)

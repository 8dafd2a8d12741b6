"""Files that a command writes: refused before the work when they cannot be written, one line when they fail after."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from headway.cli import EXIT_FAILED
from headway.core.errors import ConfigError


def check_writable(option: str, path: Path | None) -> None:
    """Raise ConfigError naming the option when no file can be written at `path`. Touches nothing."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{option} {path}: this is a folder; name a file")
    if not path.exists() and not folder.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{option} {path}: writing is not permitted there")


def check_folder(option: str, path: Path | None) -> None:
    """Raise ConfigError naming the option when no folder can be made at `path`. Touches nothing."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{option} {path}: this is a file; name a folder")
    above = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not os.access(above, os.W_OK):
        raise ConfigError(f"{option} {path}: writing is not permitted in {above}")


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """A disk that fails after all ends the command with one line."""
    try:
        yield
    except OSError as error:
        typer.echo(f"headway: {option} {path}: {error.strerror or error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None

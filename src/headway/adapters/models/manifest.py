"""Checksums of a converted model: what it was made from and what was written."""

import hashlib
from pathlib import Path

import msgspec

FILE_NAME = "headway-manifest.json"


class WrittenFile(msgspec.Struct, frozen=True):
    sha256: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`converter` is raised when the conversion changes, so that an older cache is rebuilt."""

    converter: int
    source_sha256: str
    files: dict[str, WrittenFile]


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_manifest(folder: Path, converter: int, source_sha256: str) -> None:
    """Describe every file of `folder`."""
    files = {
        path.name: WrittenFile(sha256=sha256_of(path), size_bytes=path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    manifest = Manifest(converter=converter, source_sha256=source_sha256, files=files)
    (folder / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def damage(folder: Path, converter: int, source_sha256: str) -> str | None:
    """Why the folder cannot be used, or None if every byte is as written."""
    try:
        manifest = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return f"{FILE_NAME} is missing"
    except msgspec.DecodeError as error:
        return f"{FILE_NAME} cannot be read ({error})"
    if (manifest.converter, manifest.source_sha256) != (converter, source_sha256):
        return "it was made by another converter or from another source"
    for name, written in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != written.size_bytes:
            return f"{name} has {path.stat().st_size} bytes, {written.size_bytes} were written"
        if sha256_of(path) != written.sha256:
            return f"{name} does not match its checksum"
    return None

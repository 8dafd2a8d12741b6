"""Builds kernels.cpp for this CPU once, keeps it in a cache, and calls it through its C ABI."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

_SOURCE, *_HEADERS = (Path(__file__).with_name(name) for name in ("kernels.cpp", "draw.h", "team.h", "vectors.h"))
_FLAGS = ("-O3", "-march=native", "-std=c++20", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno")
_HASH_BYTES = hashlib.sha256().digest_size
_POINTER, _INT64, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_LINEAR = [_POINTER] * 3 + [_INT64] * 3 + [_INT]
_SIGNATURES = {
    "hw_linear_f32": _LINEAR,
    "hw_linear_bf16": _LINEAR,
    "hw_add_rms_norm": [_POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _FLOAT, _INT],
    "hw_rope_store": [_POINTER, _INT64, *[_POINTER] * 8, _FLOAT, *[_INT64] * 4, _INT],
    "hw_attention": [
        *[_POINTER, _INT64, *[_POINTER] * 3, _INT64, *[_POINTER] * 3, _INT64, _POINTER],
        *[*[_INT64] * 4, _FLOAT, _INT],
    ],
    "hw_draw": [_POINTER, *[_INT64] * 3, *[_POINTER] * 6, _INT],
    "hw_layers": [_POINTER, _INT64, _POINTER],
    "hw_silu_mul": [_POINTER, _INT64, _POINTER, _INT64, _INT64, _INT],
}


class KernelsUnavailable(Exception):
    """No compiler, nowhere to put the library, or one that does not load; the torch path serves instead and the message
    says why."""


def load_kernels(cache: Path) -> ctypes.CDLL:
    """Load the library, compiling it into `cache` if this source was not compiled for this CPU yet (3 s), or if what is
    there is damaged: the loader checks nothing, and a library that was cut off ends the process with SIGBUS."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise KernelsUnavailable("no C++ compiler (g++ or clang++) was found")
    sources = b"".join(path.read_bytes() for path in (_SOURCE, *_HEADERS))
    key = hashlib.sha256(sources + repr((_FLAGS, compiler, _cpu())).encode()).hexdigest()[:16]
    path = cache / "kernels" / f"{key}.so"
    try:
        if not _is_whole(path):
            _build(compiler, path)
        # torch is imported above, so its OpenMP runtime is already loaded and both share one pool of threads.
        library = ctypes.CDLL(str(path))
    except OSError as error:  # a folder that nothing may be written to or run from
        raise KernelsUnavailable(
            f"the compiled kernels cannot be kept or loaded ({error}); is cache writable?"
        ) from error
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, None
    return library


def _is_whole(path: Path) -> bool:
    """Whether it ends with the hash of what comes before, as `_build` has written it. Raises OSError."""
    if not path.is_file():
        return False
    body = path.read_bytes()
    return hashlib.sha256(body[:-_HASH_BYTES]).digest() == body[-_HASH_BYTES:]


def _build(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as scratch:
        built = Path(scratch) / "kernels.so"
        command = [compiler, *_FLAGS, "-o", str(built), str(_SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise KernelsUnavailable(f"{compiler} cannot be run: {error}") from error
        if done.returncode != 0:
            raise KernelsUnavailable(f"{compiler} failed: {done.stderr.strip()[:400]}")
        with built.open("r+b") as file:
            digest = hashlib.sha256(file.read()).digest()  # leaves the file at its end; behind an ELF nothing counts
            file.write(digest)
        built.rename(path)


def _cpu() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    return f"{platform.machine()} {platform.processor()}"


def pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

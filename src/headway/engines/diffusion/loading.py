"""Loads a diffusers pipeline directory and finds its family; hashes what makes it this model and no other."""

import hashlib
import inspect
import os
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Final, Literal

import diffusers
import msgspec
import torch
import transformers
from safetensors.torch import load_file

from headway.core.errors import ConfigError
from headway.engines.diffusion.allocator import keep_freed_memory
from headway.engines.diffusion.families.flux import FluxFamily
from headway.engines.diffusion.families.pixart import PixArtFamily
from headway.engines.diffusion.families.protocol import Family, Pipeline
from headway.engines.diffusion.families.qwen_image import QwenImageFamily
from headway.engines.diffusion.families.sd3 import Sd3Family
from headway.engines.diffusion.families.wan import WanFamily
from headway.engines.diffusion.ip_adapter import AdapterSettings, load_adapter
from headway.engines.diffusion.pictures import codec_name
from headway.engines.diffusion.solver import check_scheduler

FAMILIES: Final[Mapping[str, type[Family]]] = {
    "FluxPipeline": FluxFamily,
    "StableDiffusion3Pipeline": Sd3Family,
    "PixArtAlphaPipeline": PixArtFamily,
    "PixArtSigmaPipeline": PixArtFamily,
    "QwenImagePipeline": QwenImageFamily,
    "WanPipeline": WanFamily,
}
_TEXT: Final = ("text_encoder", "tokenizer")  # names of components that decide embeddings begin with these
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Dtype = Literal["auto", "float32", "bfloat16"]
Role = Literal["text", "encode", "decode"]  # of a stage that can have processes of its own
Part = Literal[Role, "denoise"]
ROLES: Final[tuple[Role, ...]] = ("text", "encode", "decode")


class LoadSettings(msgspec.Struct, frozen=True):
    """Which model, and how it computes. dtype auto: bfloat16 on CUDA, else float32."""

    folder: Path
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Dtype = "auto"
    threads: int = 1
    adapter: AdapterSettings | None = None  # that takes image prompts


class Loaded(msgspec.Struct, frozen=True):
    """A pipeline that is ready. `encoder_hash`: what decides embeddings; `model_hash`: what decides pictures;
    `image_hash`: what decides embeddings of image prompts."""

    pipeline: Pipeline
    family: Family
    encoder_hash: bytes
    model_hash: bytes
    device: torch.device
    dtype: torch.dtype
    image_hash: bytes = b""


def pipeline_class(folder: Path) -> str:
    """Class named by model_index.json. Raises ConfigError where the folder is no pipeline of a family that is known."""
    index = folder / "model_index.json"
    try:
        named = msgspec.json.decode(index.read_bytes())["_class_name"]
    except (OSError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{folder} is no diffusers pipeline: its model_index.json cannot be read ({error})"
        ) from error
    if named not in FAMILIES:
        raise ConfigError(f"{folder} holds a {named}; served are {', '.join(sorted(FAMILIES))}")
    return str(named)


def load(settings: LoadSettings, only: Collection[Part] = (*ROLES, "denoise")) -> Loaded:
    """Load from local files only; `only`: the weights of these stages, others are left out. Raises ConfigError."""
    name = pipeline_class(settings.folder)
    device = _device(settings.device)
    wanted = settings.dtype if settings.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    dtype = _DTYPES[wanted]
    torch.set_num_threads(settings.threads)
    if device.type == "cpu":
        keep_freed_memory()
    for library in (transformers, diffusers):
        logs: Pipeline = library.utils.logging
        logs.set_verbosity_error()
        logs.disable_progress_bar()
    try:
        parts = _left_out(settings.folder, only)
        parts = {**_parts_in_float32(settings.folder, dtype, parts), **parts}
        pipeline = getattr(diffusers, name).from_pretrained(
            settings.folder, dtype=dtype, local_files_only=True, **parts
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ConfigError(f"{settings.folder} cannot be loaded as a {name}: {error}") from error
    for component in pipeline.components.values():
        if isinstance(component, torch.nn.Module) and not next(component.parameters()).is_meta:
            component.to(device)
    _halve(pipeline.vae, only)
    check_scheduler(pipeline.scheduler)
    family = FAMILIES[name](pipeline)  # type: ignore[call-arg]  # a protocol has no constructor, its families share one
    if family.makes_videos:
        codec_name()
    encoder_hash, model_hash = _hashes(settings.folder, f"{name} {wanted} {diffusers.__version__}".encode())
    image_hash = b""
    if settings.adapter is not None:
        hashes = load_adapter(pipeline, family, settings.adapter, settings.folder, dtype)
        image_hash, model_hash = hashes.encoder, hashlib.sha256(model_hash + hashes.all).digest()
    _remember_signatures(pipeline)
    return Loaded(pipeline, family, encoder_hash, model_hash, device, dtype, image_hash)


def _hashes(folder: Path, described: bytes) -> tuple[bytes, bytes]:
    """Of the text encoders and their tokenizers, and of all files."""
    walked = os.walk(folder, followlinks=True)  # parts of a distilled model are links into its teacher
    files = sorted(Path(inner) / file for inner, _folders, names in walked for file in names)
    text = [path for path in files if path.relative_to(folder).parts[0].startswith(_TEXT)]
    return _hash(described, folder, text), _hash(described, folder, files)


def _left_out(folder: Path, only: Collection[Part]) -> dict[str, Pipeline]:
    """Components whose weights another process holds. Transformer and VAE are there in name: families read their
    shape."""
    parts: dict[str, Pipeline] = {}
    for name, named in msgspec.json.decode((folder / "model_index.json").read_bytes()).items():
        if not isinstance(named, list) or named[1] is None:
            continue
        if name.startswith("text_encoder") and "text" not in only:
            parts[name] = None
        is_named = name.startswith("transformer") and "denoise" not in only
        if is_named or (name == "vae" and not {"encode", "decode"} & set(only)):
            cls: Pipeline = getattr(diffusers, named[1])
            with torch.device("meta"):
                parts[name] = cls.from_config(cls.load_config(folder / name))
    return parts


def _halve(vae: Pipeline, only: Collection[Part]) -> None:
    """Of a VAE that only encodes or only decodes the other half is there in name."""
    for role, half in (("encode", vae.encoder), ("decode", vae.decoder)):
        if role not in only:
            half.to("meta")


def _parts_in_float32(folder: Path, dtype: torch.dtype, others: Iterable[str]) -> dict[str, Pipeline]:
    """Models of which some modules stay in float32 (Wan's transformers), where `accelerate`, without which diffusers
    does not load them, is missing."""
    if find_spec("accelerate") is not None:
        return {}
    index = msgspec.json.decode((folder / "model_index.json").read_bytes())
    parts = {}
    for name, named in index.items():
        is_ours = isinstance(named, list) and named[0] == "diffusers" and name not in others
        cls: Pipeline = getattr(diffusers, named[1], None) if is_ours else None
        kept = getattr(cls, "_keep_in_fp32_modules", None)
        if kept:
            model = cls.from_config(cls.load_config(folder / name))
            files = sorted((folder / name).glob("*.safetensors"))
            model.load_state_dict({key: value for file in files for key, value in load_file(file).items()})
            for path, parameter in model.named_parameters():
                if not any(word in path.split(".") for word in kept):
                    parameter.data = parameter.data.to(dtype)
            parts[name] = model.eval()
    return parts


def _remember_signatures(pipeline: Pipeline) -> None:
    """Attention modules ask for the signature of their processor in every forward pass, 5 % of a step of a 2 M
    transformer at 64 px; `inspect` takes what is noted at the function."""
    for component in pipeline.components.values():
        for module in component.modules() if isinstance(component, torch.nn.Module) else ():
            call = vars(type(getattr(module, "processor", None))).get("__call__")
            if isinstance(call, FunctionType) and not hasattr(call, "__signature__"):
                call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]  # read by inspect


def _device(choice: Literal["auto", "cpu", "cuda"]) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if choice == "cuda" and not has_cuda:
        raise ConfigError("device = cuda, and torch sees no CUDA device; use device = auto or cpu")
    return torch.device("cuda" if choice != "cpu" and has_cuda else "cpu")


def _hash(described: bytes, folder: Path, files: Iterable[Path]) -> bytes:
    """Of names and contents."""
    total = hashlib.sha256(described)
    for path in files:
        total.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.digest()

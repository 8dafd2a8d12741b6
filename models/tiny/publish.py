"""Writes trained pipelines as they are committed: transformers' and the video autoencoder's matrices in half precision.

Diffusers loads half-precision files into single-precision models where no dtype is asked for, so every loader computes
with the same numbers; the text encoders stay in single precision, because transformers would compute as it loads.
`python -m models.tiny.publish {image,student,video} FROM [--to FOLDER]`
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .evaluate import HERE

WEIGHTS = "diffusion_pytorch_model.safetensors"
SHARED = ("scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae", "model_index.json")
HALVED = {"image": ("transformer",), "student": ("transformer",), "video": ("transformer", "vae")}
FOLDERS = {"image": "image", "student": "image_student", "video": "video"}


def halve(file: Path) -> None:
    """Matrices alone: vectors weigh nothing, and the video autoencoder's biases need every digit."""
    weights = {k: v if v.squeeze().ndim < 2 else v.to(torch.float16) for k, v in load_file(file).items()}
    if not all(v.isfinite().all() for v in weights.values()):
        raise ValueError(f"{file} holds a weight beyond half precision's 65504; publish it in single precision")
    save_file(weights, file, metadata={"format": "pt"})


def forget_origin(config: Path) -> None:
    """Where a part was loaded from while it was trained is nobody's business."""
    values = json.loads(config.read_text())
    if values.pop("_name_or_path", None) is not None:
        config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def publish(kind: str, source: Path, to: Path) -> None:
    """The student is its own transformer and symbolic links to the picture model's other parts."""
    out = to / FOLDERS[kind]
    shutil.rmtree(out, ignore_errors=True)
    if kind == "student":
        shutil.copytree(source / "transformer", out / "transformer")
        for part in SHARED:
            (out / part).symlink_to(Path("..") / FOLDERS["image"] / part)
    else:
        shutil.copytree(source, out)
    for part in HALVED[kind]:
        halve(out / part / WEIGHTS)
    for file in out.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(0o644)
            if file.name == "config.json":
                forget_origin(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=HALVED)
    parser.add_argument("source", type=Path)
    parser.add_argument("--to", type=Path, default=HERE)
    a = parser.parse_args()
    publish(a.kind, a.source, a.to)


if __name__ == "__main__":
    main()

"""The linear Wan autoencoder: what the class computes is the projection on the principal components, frame by frame."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
with warnings.catch_warnings():  # what the libraries say at import is theirs
    warnings.simplefilter("ignore")
    pytest.importorskip("diffusers")
    from models.tiny.publish import WEIGHTS, halve
    from models.tiny.wan_vae import CHANNELS, components, make_linear, new_vae, patches
    from safetensors.torch import load_file

from models.tiny.clips import clips, frame  # noqa: E402

FRAMES = torch.from_numpy(np.stack([frame(c, 0) for c in clips(70, 60)]))


def test_the_class_computes_the_projection_of_every_frame_alone() -> None:
    vae, (mean, axes, _) = new_vae().eval(), components(patches(FRAMES))
    make_linear(vae, mean, axes)
    clip = FRAMES[:5].transpose(0, 1)[None]
    with torch.inference_mode():
        z = vae.encode(clip).latent_dist.mode()
        again = vae.decode(z).sample
    x = patches(FRAMES[:5])
    features = (x - mean) @ axes.T
    assert z.shape == (1, CHANNELS, 5, 4, 4)
    assert torch.allclose(z[0].permute(1, 2, 3, 0).flatten(0, 2), features, atol=0.02)
    wanted = (features @ axes + mean).clamp(-1, 1)
    assert torch.allclose(patches(again[0].transpose(0, 1)), wanted, atol=0.02)


def test_components_lose_the_least() -> None:
    x = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 10, 32)
    _, axes, spread = components(x)
    assert axes.abs().argmax(1).tolist() == list(range(31, 31 - CHANNELS, -1))
    assert spread[0].item() == pytest.approx(10, rel=0.05)


def test_what_is_published_in_half_precision_computes_the_same(tmp_path: Path) -> None:
    vae, (mean, axes, _) = new_vae().eval(), components(patches(FRAMES))
    make_linear(vae, mean, axes)
    vae.save_pretrained(tmp_path)
    halve(tmp_path / WEIGHTS)
    again = new_vae().eval()
    again.load_state_dict(load_file(tmp_path / WEIGHTS))
    clip = FRAMES[:5].transpose(0, 1)[None]
    with torch.inference_mode():
        z = vae.encode(clip).latent_dist.mode()
        assert torch.equal(z, again.encode(clip).latent_dist.mode())
        assert torch.equal(vae.decode(z).sample, again.decode(z).sample)

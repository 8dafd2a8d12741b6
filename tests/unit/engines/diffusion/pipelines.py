"""One tiny random pipeline per family, of stock classes."""

from collections.abc import Callable
from typing import Any

import diffusers
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "circle", "square", "on", "white", "background", "photo", "the"]
VAE = {
    "block_out_channels": (8, 8),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": 4,
    "norm_num_groups": 4,
    "sample_size": 32,
}


def tokenizer(length: int = 16) -> Any:
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=length, **names)


def t5(width: int = 32) -> Any:
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=width, d_kv=8, d_ff=32, num_layers=1, num_heads=4, dropout_rate=0.0
    )
    return transformers.T5EncoderModel(config).eval()


def clip(cls: Any = transformers.CLIPTextModel) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=32,
        projection_dim=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=20,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
    )
    return cls(config).eval()


def flux(guidance_embeds: bool = False) -> Any:
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 6, 6),
    )
    vae = diffusers.AutoencoderKL(
        **VAE, shift_factor=0.1, scaling_factor=0.4, use_quant_conv=False, use_post_quant_conv=False
    )
    solver = diffusers.FlowMatchEulerDiscreteScheduler(shift=4.0)
    return diffusers.FluxPipeline(solver, vae.eval(), clip(), tokenizer(), t5(), tokenizer(), transformer.eval())


def sd3() -> Any:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
    )
    vae = diffusers.AutoencoderKL(
        **VAE, shift_factor=0.1, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae.eval(),
        text_encoder=clip(transformers.CLIPTextModelWithProjection),
        tokenizer=tokenizer(),
        text_encoder_2=clip(transformers.CLIPTextModelWithProjection),
        tokenizer_2=tokenizer(),
        text_encoder_3=t5(64),
        tokenizer_3=tokenizer(),
    )


def pixart() -> Any:
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        num_layers=1,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=32,
        in_channels=4,
        cross_attention_dim=32,
        out_channels=8,
        use_additional_conditions=False,
    )
    return diffusers.PixArtSigmaPipeline(
        tokenizer=tokenizer(),
        text_encoder=t5(),
        vae=diffusers.AutoencoderKL(**VAE).eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(),
    )


def qwen() -> Any:
    text = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        "vocab_size": len(WORDS),
        "max_position_embeddings": 256,
        "pad_token_id": 0,
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, 0.0, -0.1, 0.2],
        latents_std=[1.0, 1.1, 0.9, 1.2],
    )
    solver = diffusers.FlowMatchEulerDiscreteScheduler(
        base_image_seq_len=256,
        base_shift=0.5,
        max_image_seq_len=8192,
        max_shift=0.9,
        shift_terminal=0.02,
        use_dynamic_shifting=True,
    )
    encoder = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    return diffusers.QwenImagePipeline(
        scheduler=solver, vae=vae.eval(), text_encoder=encoder, tokenizer=tokenizer(256), transformer=transformer.eval()
    )


def wan(boundary_ratio: float | None = None, patch_time: int = 1) -> Any:
    def transformer() -> Any:
        return diffusers.WanTransformer3DModel(
            patch_size=(patch_time, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32,
        ).eval()

    vae = diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    config = transformers.UMT5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, dropout_rate=0.0
    )
    return diffusers.WanPipeline(
        tokenizer=tokenizer(),
        text_encoder=transformers.UMT5EncoderModel(config).eval(),
        vae=vae.eval(),
        transformer=transformer(),
        transformer_2=None if boundary_ratio is None else transformer(),
        boundary_ratio=boundary_ratio,
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )


def wan_laps() -> Any:
    """One latent frame a frame, two of them a token: the form of `models/tiny/video`."""
    pipe = wan(patch_time=2)
    channels = 8
    vae = diffusers.AutoencoderKLWan(
        base_dim=16,
        z_dim=channels,
        dim_mult=[1],
        num_res_blocks=0,
        temperal_downsample=[],
        latents_mean=[0.1] * channels,
        latents_std=[0.5] * channels,
        in_channels=3 * 8**2,
        out_channels=3 * 8**2,
        patch_size=8,
        scale_factor_temporal=1,
        scale_factor_spatial=8,
    )
    config = {**pipe.transformer.config, "patch_size": (2, 1, 1), "in_channels": channels, "out_channels": channels}
    return diffusers.WanPipeline(
        tokenizer=pipe.tokenizer,
        text_encoder=pipe.text_encoder,
        vae=vae.eval(),
        transformer=diffusers.WanTransformer3DModel.from_config(config).eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=6.0),
    )


PIPELINES: dict[str, Callable[[], Any]] = {
    "flux": flux,
    "flux-distilled": lambda: flux(guidance_embeds=True),
    "sd3": sd3,
    "pixart": pixart,
    "qwen": qwen,
    "wan": wan,
    "wan2.2": lambda: wan(boundary_ratio=0.8),
    "wan-long-tokens": lambda: wan(patch_time=2),
    "wan-laps": wan_laps,
}

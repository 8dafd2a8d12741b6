"""The decoder: one forward pass over a flattened batch of prefill chunks and decodes."""

import torch

from headway.engines.llm.backend import Backend
from headway.engines.llm.config import ModelConfig
from headway.engines.llm.kv import KvPool
from headway.engines.llm.layers import Layer, NativeStack
from headway.engines.llm.linear import Linear
from headway.engines.llm.ops import HeadNorms, NativeOps, Rows
from headway.engines.llm.weights import Checkpoint, fused, head_name


class Decoder:
    """Llama, Mistral, Qwen2 and Qwen3, as their configurations say; activations in float32."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, backend: Backend) -> None:
        self._ops = backend.ops
        self._layers = [_layer(config, checkpoint, backend, index) for index in range(config.layers)]
        self._stack = None
        if isinstance(backend.ops, NativeOps) and NativeStack.suits(self._layers):
            self._stack = NativeStack(config, backend.ops, self._layers)
        self._norm = checkpoint.tensor("model.norm.weight", config.hidden).to(backend.device, torch.float32)
        self._embedding = checkpoint.tensor("model.embed_tokens.weight", config.vocab, config.hidden)
        head = self._embedding
        if not config.tied_head:
            head = checkpoint.tensor(head_name(config), config.vocab, config.hidden)
        self._head = backend.make_linear(head, None)
        heads = config.heads * config.head_dim
        self.widths = (config.hidden, heads + 2 * config.kv_heads * config.head_dim, heads)  # hidden, QKV, attended
        self._embedding = self._embedding.to(backend.device)

    def forward(self, tokens: torch.Tensor, rows: Rows, kv: KvPool, sampled: torch.Tensor) -> torch.Tensor:
        """Store the KV of every row; return the logits, float32 [len(sampled), vocab], of the rows `sampled` names."""
        residual = self.embedded(tokens)
        if self._stack is not None:
            kept, delta = self._stack.run(residual, rows, kv, sampled)
        else:
            delta = self._layer_by_layer(residual, rows, kv)[sampled]
            kept = residual[sampled]
        return self.logits(kept, delta)

    # The parts of `forward`. `residual` [rows, hidden] is added to in place; `delta` is what is left to add to it.

    @property
    def layers(self) -> int:
        return len(self._layers)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """The residual before the first layer, float32 [rows, hidden]."""
        return self._embedding[tokens].float()

    def before_attention(
        self, index: int, residual: torch.Tensor, delta: torch.Tensor | None, rows: Rows, kv: KvPool
    ) -> torch.Tensor:
        """Rotated Q, K and V of layer `index`, [rows, (heads + 2 kv_heads) * head_dim]; K and V are stored."""
        layer, (keys, values) = self._layers[index], kv.layers[index]
        qkv = layer.qkv(self._ops.add_norm(residual, delta, layer.input_norm))
        self._ops.rope_store(qkv, rows, keys, values, layer.head_norms)
        return qkv

    def attention(self, index: int, qkv: torch.Tensor, rows: Rows, kv: KvPool) -> torch.Tensor:
        """What layer `index` attends to, [rows, heads * head_dim]."""
        return self._ops.attention(qkv, rows, *kv.layers[index])

    def after_attention(self, index: int, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The delta after layer `index`."""
        layer = self._layers[index]
        gate_up = layer.gate_up(self._ops.add_norm(residual, layer.out(attended), layer.mlp_norm))
        return layer.down(self._ops.silu_mul(gate_up))

    def logits(self, residual: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Float32 [rows, vocab]."""
        return self._head(self._ops.add_norm(residual, delta, self._norm))

    def _layer_by_layer(self, residual: torch.Tensor, rows: Rows, kv: KvPool) -> torch.Tensor:
        delta: torch.Tensor | None = None
        for index in range(len(self._layers)):
            qkv = self.before_attention(index, residual, delta, rows, kv)
            delta = self.after_attention(index, residual, self.attention(index, qkv, rows, kv))
        return torch.zeros_like(residual) if delta is None else delta


def _layer(config: ModelConfig, checkpoint: Checkpoint, backend: Backend, index: int) -> Layer:
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def linear(names: list[str], rows: list[int], columns: int, biased: bool) -> Linear:
        weight = fused(checkpoint, [name + ".weight" for name in names], rows, columns)
        bias = fused(checkpoint, [name + ".bias" for name in names], rows, None) if biased else None
        return backend.make_linear(weight, bias)

    def norm(name: str, width: int) -> torch.Tensor:
        return checkpoint.tensor(name, width).to(backend.device, torch.float32)

    norms = None
    if config.qk_norm:
        norms = HeadNorms(
            query=norm(attention + "q_norm.weight", config.head_dim),
            key=norm(attention + "k_norm.weight", config.head_dim),
        )
    qkv = [attention + f"{name}_proj" for name in "qkv"]
    gate_up = [mlp + "gate_proj", mlp + "up_proj"]
    return Layer(
        input_norm=norm(prefix + "input_layernorm.weight", config.hidden),
        qkv=linear(qkv, [heads, kv, kv], config.hidden, config.qkv_bias),
        head_norms=norms,
        out=linear([attention + "o_proj"], [config.hidden], heads, config.output_bias),
        mlp_norm=norm(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=linear(gate_up, [config.feed_forward] * 2, config.hidden, config.mlp_bias),
        down=linear([mlp + "down_proj"], [config.hidden], config.feed_forward, config.mlp_bias),
    )

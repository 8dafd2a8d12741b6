"""A language model as the cost models see it: parameters, bytes and KV, from the numbers of its architecture.

Dense attention with grouped heads (GQA), multi-head latent attention (MLA), experts (MoE), sliding windows.
"""

from typing import Annotated

import msgspec

from headway.cost.devices import BYTES_OF, check_dtype

Count = Annotated[int, msgspec.Meta(ge=1)]
Some = Annotated[int, msgspec.Meta(ge=0)]

WIDE = ("float32", "bfloat16", "float16")


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Widths of multi-head latent attention (DeepSeek-V2, section 2.1). `q_rank` 0: queries are not compressed."""

    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    value_dim: Count
    q_rank: Some = 0


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expert layers. `dtype`: they come in this type whatever the rest runs in."""

    experts: Count
    per_token: Count
    feed_forward: Count  # of one expert
    layers: Count  # that have experts; the others are dense
    shared_feed_forward: Some = 0  # of the experts that every token visits, together
    biased: bool = False
    dtype: str = ""


class LlmModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder. Bytes are those of the number type that is asked for; counts are of the whole model."""

    name: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    feed_forward: Some  # of dense layers
    context_max: Count
    gated: bool = True  # three matrices in the feed-forward part, else two
    tied_head: bool = False
    small_parameters: Some = 0  # norms, biases, learned positions
    latent: Latent | None = None
    experts: Experts | None = None
    window: Some = 0  # tokens that a windowed layer looks back
    windowed_layers: Some = 0
    source: str = ""
    date: str = ""

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if (mla := self.latent) is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        query = mla.nope_dim + mla.rope_dim
        if mla.q_rank:
            queries = self.hidden * mla.q_rank + mla.q_rank * self.heads * query
        else:
            queries = self.hidden * self.heads * query
        down = self.hidden * (mla.kv_rank + mla.rope_dim)
        up = mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
        return queries + down + up + self.heads * mla.value_dim * self.hidden

    @property
    def linear_parameters(self) -> int:
        """Of all layers, without experts that are chosen: what every token is multiplied with."""
        matrices = 3 if self.gated else 2
        total = self.layers * self.attention_parameters
        dense = self.layers
        if (moe := self.experts) is not None:
            dense -= moe.layers
            total += moe.layers * self.hidden * (moe.experts + matrices * moe.shared_feed_forward)
        return total + dense * matrices * self.hidden * self.feed_forward

    @property
    def expert_parameters(self) -> int:
        """Of one chosen expert in one layer; 0 for a dense model."""
        if (moe := self.experts) is None:
            return 0
        biases = (2 if self.gated else 1) * moe.feed_forward + self.hidden if moe.biased else 0
        return (3 if self.gated else 2) * self.hidden * moe.feed_forward + biases

    @property
    def head_parameters(self) -> int:
        """Of the output layer."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        return self.linear_parameters + self._experts_of(every=True) + embeddings + self.small_parameters

    @property
    def parameters_active(self) -> int:
        """Those that one token uses; the embedding counts, as model cards count it."""
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        return self.linear_parameters + self._experts_of(every=False) + embeddings + self.small_parameters

    def _experts_of(self, *, every: bool) -> int:
        if (moe := self.experts) is None:
            return 0
        return moe.layers * (moe.experts if every else moe.per_token) * self.expert_parameters

    def expert_dtype(self, dtype: str) -> str:
        """The type of expert weights when the model is served in `dtype`."""
        return self.experts.dtype if self.experts is not None and self.experts.dtype else check_dtype(dtype)

    def weight_bytes(self, dtype: str) -> float:
        """All weights. Quantised types hold the layers' matrices; embeddings, head and norms stay 16 bits wide."""
        wide = BYTES_OF[dtype] if check_dtype(dtype) in WIDE else 2.0
        layers = self.linear_parameters * BYTES_OF[dtype]
        experts = self._experts_of(every=True) * BYTES_OF[self.expert_dtype(dtype)]
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        return layers + experts + (embeddings + self.small_parameters) * wide

    def kv_numbers(self) -> int:
        """Numbers that one token leaves in one layer's cache: 2 n_kv d_h, or d_c + d_r with latent attention."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> float:
        """Of all layers, windowed ones too: they hold a token as long as it is inside the window."""
        return self.layers * self.kv_numbers() * BYTES_OF[check_dtype(dtype)]

    def kv_bytes_per_token_of_rank(self, tp: int, dtype: str = "bfloat16") -> float:
        """Under tensor parallelism: KV heads are split and then copied; a latent cache is on every rank whole."""
        share = 1 if self.latent is not None else min(tp, self.kv_heads)
        return self.kv_bytes_per_token(dtype) / share

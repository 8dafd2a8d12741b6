"""Truth of the routing study's replicas: what a step takes on a model and its devices (roofline, REFERENCE 2).

Everything else takes `cost.roofline` and the catalogue. The numbers here stay as they are, because the stored results
of the study were computed with them; peaks equal the catalogue's, floors and memory are rounder.
"""

from typing import Final

import msgspec

from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, StepPlan
from headway.core.units import NS_PER_S, Ns


def _noise(seed: int, step: int) -> float:
    """Return a keyed number in [-1, 1). A step needs one, and a hash of the cryptographic kind is slow (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ x >> 31) / (1 << 63) - 1


class DeviceTruth(msgspec.Struct, frozen=True):
    """`flops`, `bytes_per_s`: peak of one device; `ring_*`: all-reduce over the group, fits of Vidur's profiles."""

    name: str
    flops: float
    bytes_per_s: float
    ring_bytes_per_s: float
    ring_floor_ns: float
    memory_bytes: float


class ModelTruth(msgspec.Struct, frozen=True):
    """A dense decoder."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    head_size: int
    kv_bytes_per_token: float


H100: Final = DeviceTruth("H100-SXM", 989e12, 3.35e12, 213e9, 20_000, 80e9)
A100: Final = DeviceTruth("A100-80G", 312e12, 2.04e12, 108e9, 35_000, 80e9)
LLAMA_70B: Final = ModelTruth("llama-3-70b", 70.6e9, 80, 8192, 64, 128, 327_680)


class RooflineTruth(msgspec.Struct, frozen=True):
    """t = max(linear, weights) + max(attention, KV) + all-reduces + t0, times (1 + jitter * u).

    Reaches `compute` of the peak in products, `attention` in attention, `memory` of the bandwidth. With 8 devices a
    decode of Llama-3-70B takes 10 ms on H100 (published: 9.5 to 10.4), its prefill 0.55 s for 12k tokens.
    """

    device: DeviceTruth = H100
    model: ModelTruth = LLAMA_70B
    tp: int = 8
    compute: float = 0.6
    attention: float = 0.4
    memory: float = 0.8
    overhead_ns: float = 300_000.0
    host_base_ns: float = 200_000.0
    host_row_ns: float = 5_000.0
    slowdown: float = 1.0  # of the whole replica
    jitter: float = 0.05
    seed: int = 0

    def kv_tokens(self, share: float = 0.9, activations: float = 10e9) -> int:
        """Tokens of KV that fit beside the weights in `share` of the memory."""
        weights = 2 * self.model.parameters
        room = self.tp * self.device.memory_bytes * share - weights - activations
        return int(room / self.model.kv_bytes_per_token)

    def step_ns(self, plan: StepPlan) -> Ns:
        """Device time of a step."""
        device, model, tp = self.device, self.model, self.tp
        tokens = plan.tokens
        pairs = plan.kv_tokens
        context = plan.kv_tokens
        for chunk in plan.chunks:
            pairs += chunk.count * chunk.start + chunk.count * (chunk.count + 1) // 2
            context += chunk.start + chunk.count
        bandwidth = self.memory * device.bytes_per_s * tp
        peak = device.flops * tp
        linear = max(2 * model.parameters * tokens / (self.compute * peak), 2 * model.parameters / bandwidth)
        products = 4 * model.layers * model.heads * model.head_size * pairs
        attention = max(products / (self.attention * peak), model.kv_bytes_per_token * context / bandwidth)
        ring_ns = max(device.ring_floor_ns, tokens * model.hidden * 2 / device.ring_bytes_per_s * NS_PER_S)
        ns = (linear + attention) * NS_PER_S + 2 * model.layers * ring_ns + self.overhead_ns
        return round(ns * self.slowdown * (1 + self.jitter * _noise(self.seed, plan.step)))

    def host_ns(self, plan: StepPlan) -> Ns:
        """Host time to plan it."""
        return round(self.host_base_ns + self.host_row_ns * (plan.decodes + len(plan.chunks)))

    def denoise_ns(self, plan: DenoisePlan) -> Ns:
        """An LLM replica denoises nothing."""
        raise InvariantError(f"step {plan.step}: {self.model.name} runs no denoise plan")

"""Pictures and videos to denoise: shapes with shares, open loop."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, RequestId
from headway.core.request import DiffusionRequest, LoraUse
from headway.core.units import Ns
from headway.workload.mint import Served, faster, scaled_times, served_model, tenant
from headway.workload.offered import Offered
from headway.workload.spec import Diffusion


class DiffusionSource:
    """Every request draws its shape and, where it has one, its adapter."""

    def __init__(self, spec: Diffusion, name: str, seed: int, served: Sequence[Served]) -> None:
        """`seed`: the scenario's. Raises ConfigError for a model that nothing serves, or without a shape."""
        if not spec.shapes:
            raise ConfigError(f"workload {name!r}: shapes is empty; name at least one")
        self._spec, self._name, self._seed = spec, name, seed + spec.seed
        self._model = ModelId(served_model(spec, name, served).model)
        self._bounds = list(accumulate(shape.share for shape in spec.shapes))

    def first(self) -> Iterator[Offered]:
        """Every request."""
        spec = self._spec
        arrivals = faster(spec.arrivals, spec.rate_scale)
        at = scaled_times(spec, arrivals, self._seed, f"{self._name}/arrival")
        for place, at_ns in zip(range(spec.count), at, strict=False):
            yield Offered(self._request(place, at_ns), 0)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:  # noqa: ARG002  Source
        """Open loop waits for nothing."""
        return None

    def _request(self, place: int, at_ns: Ns) -> DiffusionRequest:
        spec, seed, key = self._spec, self._seed, f"{self._name}/{place}"
        drawn = draw_unit(seed, f"{key}/shape", 0, 0) * self._bounds[-1]
        number = next((at for at, bound in enumerate(self._bounds) if drawn < bound), len(self._bounds) - 1)
        shape = spec.shapes[number]
        adapter = int(draw_unit(seed, f"{key}/lora", 0, 0) * shape.loras)
        return DiffusionRequest(
            id=RequestId(f"req-{self._name}-{place}"),
            tenant=tenant(spec, seed, key),
            model=self._model,
            steps=shape.steps,
            height=shape.height,
            width=shape.width,
            seed=place,
            arrived_ns=at_ns,
            slo=spec.slo.at(at_ns, 0),
            urgency=spec.urgency,
            frames=shape.frames,
            fps=shape.fps,
            guidance_scale=shape.guidance_scale,
            passes=shape.passes,
            n=shape.n,
            reference_tokens=shape.reference_tokens,
            loras=(LoraUse(f"lora-{adapter}"),) if shape.loras else (),
            control_nets=tuple(f"control-{at}" for at in range(shape.control_nets)),
            image_prompts=shape.image_prompts,
            deterministic=shape.deterministic,
        )

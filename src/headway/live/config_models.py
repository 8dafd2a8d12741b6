"""Which models are served under which names: by own engines, by upstreams, by aliases and fallbacks (SPEC A6, M1)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from headway.adapters.upstream.discovery import read_upstreams
from headway.adapters.upstream.settings import UpstreamSettings, check_upstreams
from headway.core.errors import ConfigError
from headway.live.config_layers import Sourced
from headway.live.config_words import join
from headway.sched.nodes import FrontConfig

SYNTHETIC_MODEL: Final = "synthetic"
LISTS_ADAPTERS: Final = ("vllm", "sglang", "headway")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that our own engines serve; several: `[[models]]`. Without it, and with upstreams, there is none."""

    name: str = "SmolLM2-135M-Instruct"  # a name of `headway models`, a Hugging Face folder, or a hub id
    served_name: str | None = None  # what clients call it; unset: its own name
    replicas: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1  # engine processes that serve it; 0: none, only upstreams


class DiscoverySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Upstreams that come and go while Headway runs."""

    file: str | None = None  # TOML or .json with a list `upstreams`; a path from the working directory
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # between two looks at it
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 3600.0  # how long answers of a removed upstream may go on


class Names(msgspec.Struct, frozen=True):
    """The parts of the configuration that name models."""

    model: ModelSettings
    models: tuple[ModelSettings, ...]
    upstreams: tuple[UpstreamSettings, ...]
    discovery: DiscoverySettings
    aliases: Mapping[str, str]
    front: FrontConfig
    is_synthetic: bool
    diffusion: tuple[str, ...] = ()  # names of the models of [[diffusion]]

    @property
    def has_upstreams(self) -> bool:
        """Some requests may be relayed."""
        return bool(self.upstreams) or self.discovery.file is not None

    @property
    def own(self) -> tuple[ModelSettings, ...]:
        """The models of our own engines."""
        return self.models or ((self.model,) if self.model.replicas else ())


def served_name(model: ModelSettings, is_synthetic: bool) -> str:
    """What clients call it, before the files of the model are looked at."""
    return model.served_name or (SYNTHETIC_MODEL if is_synthetic else model.name)


LEFT_OUT_REASON: Final = "upstreams are given and no model is; model.replicas = 1 starts one beside them"


def is_left_out(names: Names, sources: Sequence[Sourced]) -> bool:
    """True when upstreams are given and nothing was said of a model: then none of our own is started, or fetched."""
    is_given = any(s.origin != "default" and s.key.startswith("model.") for s in sources)
    return names.has_upstreams and not names.models and not is_given


def check_models(names: Names, sources: Sequence[Sourced]) -> frozenset[str] | None:
    """Return every model that there is; None where upstreams may bring more. Raises ConfigError for names that nobody
    serves, or that two serve in ways that differ."""
    for sourced in sources:
        if names.models and sourced.origin != "default" and sourced.key.startswith("model."):
            raise ConfigError(f"{sourced.key} and models are both given; move [model] into a [[models]] of its own")
    for number, model in enumerate(names.models):
        if model.replicas < 1:
            raise ConfigError(f"models[{number}].replicas = 0: a model without replicas; leave it out")
    if not names.own and not names.has_upstreams and not names.diffusion:
        raise ConfigError("model.replicas = 0 without upstreams, discovery.file or diffusion: nothing would be served")
    check_upstreams(names.upstreams)
    _check_file(names.discovery)
    known = _known(names)
    _check_aliases(names, known)
    _check_fallbacks(names, known)
    return frozenset(known) if _is_known_whole(names) else None


def _check_file(discovery: DiscoverySettings) -> None:
    """The file must be right at the start; later a broken one changes nothing."""
    if discovery.file is not None:
        try:
            read_upstreams(Path(discovery.file).expanduser())
        except ConfigError as error:
            raise ConfigError(f"discovery.file: {error}") from None


def _known(names: Names) -> dict[str, str]:
    """Every served name with the key that says so. Raises ConfigError when own engines and upstreams both serve it."""
    own: dict[str, str] = {}
    for key, model in _own_keys(names):
        name = served_name(model, names.is_synthetic)
        if name in own:
            raise ConfigError(f"{own[name]} and {key} are both called {name!r}; give one of them a served_name")
        own[name] = key
    for number, name in enumerate(names.diffusion):
        key = f"diffusion[{number}]"
        if name in own:
            raise ConfigError(f"{own[name]} and {key} are both called {name!r}; give one of them another name")
        own[name] = key
    known = dict(own)
    for number, upstream in enumerate(names.upstreams):
        for name in upstream.models:
            key = join(f"upstreams[{number}].models", name)
            if name in own:
                raise ConfigError(
                    f"{own[name]} and {key} are both called {name!r}: own engines and upstreams take requests apart; "
                    "give one of them another name, and make it a fallback (front.routes.NAME.fallbacks) of the other"
                )
            known.setdefault(name, key)
    return known


def _own_keys(names: Names) -> Iterator[tuple[str, ModelSettings]]:
    if names.models:
        yield from ((f"models[{number}]", model) for number, model in enumerate(names.models))
    else:
        yield from (("model", model) for model in names.own)


def _is_known_whole(names: Names) -> bool:
    """False while upstreams may bring names of their own: all of their models, or LoRA adapters."""
    has_none = (upstream.models and upstream.kind not in LISTS_ADAPTERS for upstream in names.upstreams)
    return names.discovery.file is None and all(has_none)


def _check_aliases(names: Names, known: Mapping[str, str]) -> None:
    for alias, model in names.aliases.items():
        key = join("aliases", alias)
        if not alias or not model:
            raise ConfigError(f"{key} = {model!r}: a name has at least one character")
        if alias in known:
            raise ConfigError(f"{key} and {known[alias]}: {alias!r} is the name of a model")
        if model in names.aliases:
            raise ConfigError(f"{key} = {model!r}, which is an alias itself; name the model")
        if model not in known and _is_known_whole(names):
            raise ConfigError(f"{key} = {model!r}: no such model; known are {', '.join(sorted(known))}")


def _check_fallbacks(names: Names, known: Mapping[str, str]) -> None:
    for model, route in names.front.routes.items():
        key = join("front.routes", model)
        if model in names.aliases:
            raise ConfigError(f"{key}: {model!r} is an alias; write it for {names.aliases[model]!r}")
        if model not in known and _is_known_whole(names):
            raise ConfigError(f"{key}: {model!r} is no such model; known are {', '.join(sorted(known))}")
        for name, others in (("fallbacks", route.fallbacks), ("transfers_to", route.transfers_to)):
            _check_others(names, known, model, (f"{key}.{name}", others))


def _check_others(names: Names, known: Mapping[str, str], model: str, given: tuple[str, tuple[str, ...]]) -> None:
    key, others = given
    for fallback in others:
        if fallback == model or others.count(fallback) > 1:
            raise ConfigError(f"{key} has {fallback!r} twice, or is for that model itself")
        if fallback in names.aliases:
            raise ConfigError(f"{key} has {fallback!r}, which is an alias; write {names.aliases[fallback]!r}")
        if fallback not in known and _is_known_whole(names):
            raise ConfigError(f"{key} has {fallback!r}: no such model; known are {', '.join(sorted(known))}")

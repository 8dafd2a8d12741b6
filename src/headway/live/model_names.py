"""Who answers to which name: own models, what upstreams offer, LoRA adapters, aliases, fallbacks (SPEC A6)."""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from headway.adapters.upstream.load import BytesPerToken
from headway.adapters.upstream.look import UpstreamCard
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.ids import NodeId

log = logging.getLogger(__name__)


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter at one upstream: the served name of its model, and what the upstream calls it."""

    model: str
    own_name: str


class Offer(msgspec.Struct, frozen=True):
    """What one upstream serves, by the names that clients use."""

    models: Mapping[str, str]  # served name -> its own name
    adapters: Mapping[str, Adapter] = {}  # msgspec copies the default

    def own_name(self, model: str, lora: str | None) -> str | None:
        """What the upstream calls it; None: it does not serve it."""
        if lora is None:
            return self.models.get(model)
        adapter = self.adapters.get(lora)
        return None if adapter is None or adapter.model != model else adapter.own_name


def offer_of(settings: UpstreamSettings, cards: Sequence[UpstreamCard]) -> Offer:
    """What an upstream serves by its settings and by what it lists; nothing was listed: what the settings say."""
    parents = {card.id: card.parent for card in cards}
    models = dict(settings.models) or {name: name for name, parent in parents.items() if parent is None}
    served = {own: name for name, own in models.items()}
    adapters: dict[str, Adapter] = {}
    for name, parent in parents.items():
        if parent is not None and parent in served and name not in served:
            adapters[name] = Adapter(served[parent], name)
    for name, own in list(models.items()):  # an adapter that the settings give a name
        parent = parents.get(own)
        if parent is not None and parent in served:
            del models[name]
            adapters[name] = Adapter(served[parent], own)
    return Offer(models, adapters)


class Relayed(msgspec.Struct):
    """A model that at least one upstream serves."""

    max_tokens_default: int
    bytes_per_token: BytesPerToken
    adapters: dict[str, None]  # in the order they were seen


class ModelNames:
    """Every name that a client may use."""

    def __init__(
        self,
        own: Sequence[str],
        aliases: Mapping[str, str],
        fallbacks: Mapping[str, tuple[str, ...]],
        transfers: Sequence[str] = (),
    ) -> None:
        """`transfers`: models to which admission may send requests that named another one."""
        self.own, self.aliases, self.fallbacks = frozenset(own), dict(aliases), dict(fallbacks)
        self.relayed: dict[str, Relayed] = {}
        self._bases: dict[str, str] = {}  # adapter -> its model
        # Names behind which a client may have written another one.
        self.renamed = frozenset(
            (*aliases.values(), *transfers, *(name for names in fallbacks.values() for name in names))
        )
        self._offers: dict[NodeId, tuple[UpstreamSettings, Offer]] = {}
        self._learned: dict[str, BytesPerToken] = {}  # kept when a model goes and comes back
        self._refused: dict[tuple[NodeId, str], None] = {}

    def offer(self, node: NodeId, settings: UpstreamSettings, offer: Offer) -> Offer:
        """An upstream serves this now; return it without the names that our own engines have."""
        clashes = [name for name in (*offer.models, *offer.adapters) if name in self.own]
        for name in clashes:
            if (node, name) not in self._refused:
                self._refused[node, name] = None
                log.error("%s lists %r, which own engines serve: it is not used there; give it a name of its own in "
                          "upstreams.models", node, name)  # fmt: skip
        kept = Offer(
            {name: own for name, own in offer.models.items() if name not in self.own},
            {name: a for name, a in offer.adapters.items() if name not in self.own and a.model not in self.own},
        )
        self._offers[node] = settings, kept
        self._collect()
        return kept

    def withdraw(self, node: NodeId) -> None:
        """The upstream is gone."""
        self._offers.pop(node, None)
        self._collect()

    def _collect(self) -> None:
        found: dict[str, Relayed] = {}
        bases: dict[str, str] = {}
        for settings, offer in self._offers.values():
            for name in offer.models:
                learned = self._learned.setdefault(name, BytesPerToken(settings.bytes_per_token))
                found.setdefault(name, Relayed(settings.max_tokens_default, learned, {}))
        for _, offer in self._offers.values():
            for name, adapter in offer.adapters.items():
                if adapter.model in found and bases.setdefault(name, adapter.model) == adapter.model:
                    found[adapter.model].adapters[name] = None
        self.relayed, self._bases = found, bases

    def resolve(self, name: str) -> tuple[str, str | None] | None:
        """The model behind a name, and the adapter that the name means; None: nobody has it."""
        model = self.aliases.get(name, name)
        if model in self.own or model in self.relayed:
            return model, None
        base = self._bases.get(model)
        return None if base is None else (base, model)

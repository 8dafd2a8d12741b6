"""What a scenario adds to the catalogues of devices, links, models and efficiencies, and how to find one by name."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headway.core.errors import ConfigError
from headway.cost.devices import Device, find_device
from headway.cost.diffusion_devices import Chip, Reach, chip
from headway.cost.diffusion_models import DiffusionModel, diffusion_model
from headway.cost.efficiency import Efficiency, find_efficiency
from headway.cost.links import Link, find_link
from headway.cost.models import LlmModel
from headway.cost.models_catalogue import find_model
from headway.cost.models_hf import model_of


class Additions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the catalogues do not have; an entry of a known name counts in place of that one."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    models: tuple[LlmModel, ...] = ()
    efficiencies: tuple[Efficiency, ...] = ()
    denoisers: tuple[DiffusionModel, ...] = ()
    reaches: dict[str, Reach] = {}  # what denoisers reach of a device, by its name
    hf_configs: dict[str, str] = {}  # models by the path of their Hugging Face config.json


class Catalogue:
    """The catalogues with a scenario's additions."""

    def __init__(self, additions: Additions) -> None:
        """Reads the configs that are named. Raises ConfigError for what cannot be read."""
        self._devices = {entry.name: entry for entry in additions.devices}
        self._links = {entry.name: entry for entry in additions.links}
        self._efficiencies = {entry.name: entry for entry in additions.efficiencies}
        self._denoisers = {entry.name: entry for entry in additions.denoisers}
        self._reaches = additions.reaches
        self._models = {entry.name: entry for entry in additions.models}
        self._models |= {name: read_hf_config(name, Path(path)) for name, path in additions.hf_configs.items()}

    def device(self, name: str) -> Device:
        """Return a device. Raises ConfigError with the nearest name."""
        return find_device(name, self._devices)

    def link_named(self, name: str) -> Link:
        """Return a link. Raises ConfigError with the nearest name."""
        return find_link(name, self._links)

    def link(self, name: str) -> Link | None:
        """Return a link; empty: what the device comes with. Raises ConfigError with the nearest name."""
        return self.link_named(name) if name else None

    def model(self, name: str) -> LlmModel:
        """Return a model. Raises ConfigError with the nearest name."""
        return find_model(name, self._models)

    def denoiser(self, name: str) -> DiffusionModel:
        """Return a diffusion model. Raises ConfigError with the known names."""
        return diffusion_model(name, self._denoisers)

    def chip(self, device: str, link: str) -> Chip:
        """Return a device as denoisers reach it. Raises ConfigError for one that nobody measured."""
        return chip(self.device(device), self.link(link), self._reaches)

    def efficiency(self, name: str) -> Efficiency:
        """Return what an engine reaches. Raises ConfigError with the nearest name."""
        return find_efficiency(name, self._efficiencies)


def read_hf_config(name: str, path: Path) -> LlmModel:
    """Return the model of a config.json. Raises ConfigError."""
    try:
        config: Mapping[str, object] = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise ConfigError(f"catalogue.hf_configs.{name} = {str(path)!r}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"catalogue.hf_configs.{name} = {str(path)!r} is not JSON: {error}") from None
    return model_of(config, name=name, source=str(path))

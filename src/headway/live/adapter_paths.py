"""Where the IP-Adapter of a model lies."""

from pathlib import Path

from headway.core.errors import ConfigError


def absolute(path: str | None) -> str | None:
    """For processes that begin elsewhere."""
    return None if path is None else str(Path(path).expanduser().absolute())


def check_adapter(key: str, weights: str | None, encoder: str | None, *, is_able: bool) -> None:
    """Raise ConfigError for an adapter that is not there, or without a model for it. `is_able`: a pipeline for pictures
    is served."""
    if weights is None:
        if encoder is not None:
            raise ConfigError(f"{key}.image_encoder = {encoder!r} belongs to {key}.ip_adapter, which is unset")
        return
    if not is_able:
        raise ConfigError(f"{key}.ip_adapter = {weights!r} needs {key}.folder, a Flux pipeline that makes pictures")
    if not Path(weights).expanduser().exists():
        raise ConfigError(f"{key}.ip_adapter = {weights!r} does not exist")
    if encoder is not None and not (Path(encoder).expanduser() / "config.json").is_file():
        raise ConfigError(f"{key}.image_encoder = {encoder!r} holds no model (config.json)")

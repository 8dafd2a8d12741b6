"""Models on disk: names to files, the default model's conversion, checksums."""

from headway.adapters.models.errors import ModelError
from headway.adapters.models.files import ModelFiles
from headway.adapters.models.store import DEFAULT_MODEL, KnownModel, cache_folder, list_models, pull, resolve

__all__ = ["DEFAULT_MODEL", "KnownModel", "ModelError", "ModelFiles", "cache_folder", "list_models", "pull", "resolve"]

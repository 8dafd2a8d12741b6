"""Fetches a Hugging Face hub model, where the hub client is installed and the hub can be reached."""

import importlib.util
import re
from pathlib import Path

from headway.adapters.models.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ["*.json", "*.safetensors", "*.jinja"]


def is_hub_id(model: str) -> bool:
    return _ID.fullmatch(model) is not None


def hub_folder(model: str) -> Path:
    """The local snapshot of a hub id, downloaded if needed; the hub's own progress bars are shown."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError(f"{model} looks like a hub id; install huggingface_hub to fetch it, or pass a local folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(model, allow_patterns=_WANTED))
    except RepositoryNotFoundError as error:
        raise ModelError(f"the hub has no model {model}, or it needs a token (HF_TOKEN)") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model} is not in the hub's local cache and the hub cannot be reached; go online, or pass a local folder"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"the hub did not give {model}: {error}") from error

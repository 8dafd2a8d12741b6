"""What an allocation failure looks like on each device."""

from typing import Final

import torch

_WORDS: Final = ("can't allocate memory", "not enough memory", "out of memory")  # of torch's allocators


def is_out_of_memory(error: BaseException) -> bool:
    """True for a failed allocation, which leaves the engine well."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def release() -> None:
    """Give cached device memory back, so that what follows a failure finds room (vllm-omni#2327)."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

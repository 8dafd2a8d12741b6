"""The sizes that batches have: each up to 8, then powers of two, and the largest. These are measured, and no others
form: between them a gain would be a guess, and nothing of such a size was ever compiled or allocated (SPEC F4, F8)."""

from typing import Final

_EACH_MAX: Final = 8  # pictures of a batch up to which every size is one


def batch_sizes(largest: int) -> list[int]:
    """All of them, the smallest first."""
    doubled = [1 << power for power in range(_EACH_MAX.bit_length(), largest.bit_length())]
    return list(dict.fromkeys([*range(1, min(largest, _EACH_MAX) + 1), *doubled, largest]))


def rows_of(
    pictures: int, passes: int, latents: int, joined_tokens_max: int | None, pictures_max: int | None
) -> list[int]:
    """Rows of each forward pass that one step of so many pictures takes, of `latents` tokens each.

    More than `pictures_max` are several passes. The `passes` of guidance are one up to `joined_tokens_max` tokens.
    """
    rows: list[int] = []
    for part in [pictures] if pictures_max is None else parts_of(pictures, pictures_max):
        is_joined = joined_tokens_max is None or latents * part <= joined_tokens_max
        rows += [part * passes] if is_joined else [part] * passes
    return rows


def parts_of(pictures: int, largest: int) -> list[int]:
    """So many pictures as forward passes of these sizes, the largest first."""
    sizes, parts = batch_sizes(largest), []
    while pictures:
        parts.append(max(size for size in sizes if size <= pictures))
        pictures -= parts[-1]
    return parts

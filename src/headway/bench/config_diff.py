"""Which keys of some scenarios differ, by dotted name; entries of a list are named by their `name`, else numbered."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

UNSET: Final = "-"


def flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted name of every value of a tree."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, Sequence) and not isinstance(tree, str | bytes) and any(isinstance(v, Mapping) for v in tree):
        for place, value in enumerate(tree):
            name = value.get("name") if isinstance(value, Mapping) else None
            yield from flat(value, f"{path}.{name or place}")
    else:
        yield path, tree


def differing(trees: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the values of every key that is not the same in all trees, in the order of the first that has it.

    A key that a tree does not have shows `UNSET`.
    """
    flats = [dict(flat(tree)) for tree in trees]
    keys = dict.fromkeys(key for values in flats for key in values)
    rows = {key: [values.get(key, UNSET) for values in flats] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values[1:])}

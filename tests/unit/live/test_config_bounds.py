"""Every number of the configuration has a lower bound, and a negative one is refused by its key."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.live.config import Config, Host, resolve
from headway.live.config_faults import section_type
from headway.live.config_layers import Layer
from headway.live.config_policies import POLICIES
from headway.sched.registry import discover

SIGNED = {"auth.tenants.x.priority_floor"}  # the wire's `priority` may be negative, and so may its floor


class Number(msgspec.Struct, frozen=True):
    """A numeric key, and how a file would write `-1` there."""

    key: str
    is_bounded: bool
    values: dict[str, object]


def numbers(hint: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Path of every integer and float below `hint`, and whether it has a lower bound."""
    section, origin, arguments = section_type(hint), get_origin(hint), get_args(hint)
    if section is not None:
        for name, inner in get_type_hints(section, include_extras=True).items():
            yield from numbers(inner, (*path, name))
    elif origin is dict:
        yield from numbers(arguments[1], (*path, "x"))
    elif origin in (tuple, list):
        yield from numbers(arguments[0], (*path, "[]"))
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from numbers(argument, path)
    elif origin is Annotated:
        metas = [meta for meta in arguments[1:] if isinstance(meta, msgspec.Meta)]
        bounded = any(meta.ge is not None or meta.gt is not None for meta in metas)
        yield from ((found, own or bounded) for found, own in numbers(arguments[0], path))
    elif hint in (int, float):
        yield path, False


def nest(path: tuple[str, ...], value: object) -> object:
    for part in reversed(path):
        value = [value] if part == "[]" else {part: value}
    return value


def every_number() -> Iterator[Number]:
    for path, bounded in numbers(Config, ()):
        values = nest(path, -1)
        assert isinstance(values, dict)
        yield Number(".".join(path).replace(".[]", "[0]"), bounded, values)
    for key, package in POLICIES.items():
        for name, policy in discover(package).items():
            for path, bounded in numbers(policy.Params, ()):
                values = nest(tuple(key.split(".")), {"type": name, "params": nest(path, -1)})
                assert isinstance(values, dict)
                yield Number(".".join((key, "params", *path)), bounded, values)


NUMBERS = list(every_number())
UNSIGNED = [number for number in NUMBERS if number.key not in SIGNED]


def test_the_walk_reaches_sections_tables_lists_and_policies() -> None:
    keys = {number.key for number in NUMBERS}
    assert {"fleet.migration.cooldown_s", "slo.x.ttft_ms", "executor.buckets.rows[0]"} <= keys
    assert keys >= {"scheduler.order.params.age_ms", "front.admission.params.queue_max", *SIGNED}


# SPEC M1
def test_every_number_has_a_lower_bound() -> None:
    assert [number.key for number in UNSIGNED if not number.is_bounded] == []


# SPEC M1
@pytest.mark.parametrize("number", UNSIGNED, ids=lambda number: number.key)
def test_a_negative_number_is_refused_by_its_key(number: Number) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([Layer("a.toml", number.values)], Host(cores=8))
    assert str(caught.value).startswith("a.toml: ")
    assert f"`{number.key}`" in str(caught.value)

"""JSON bodies to structs, with errors that name the field and, for an unknown one, the nearest known name."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED, Unsupported
from headway.adapters.gateway.refusals import nearest, refusal
from headway.core.errors import RequestError

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

OTHER_ROUTE: Final = {"prompt": "messages", "messages": "prompt"}  # what chat and completions call their input

_TOP_LEVEL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_body(raw: bytes, kind: type[BodyT], unsupported: Mapping[str, Unsupported] = UNSUPPORTED) -> BodyT:
    """Decode `raw` as `kind`. Raises RequestError that names the field; `unsupported`: known fields that it lacks."""
    if not raw.strip():
        raise RequestError("The body is empty; send a JSON object.", code="invalid_json")
    try:
        top = _TOP_LEVEL.decode(raw)
        values = ((name, partial(msgspec.json.decode, value)) for name, value in top.items())
        _check_names(values, kind, unsupported)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise refusal(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.", code="invalid_json") from None


def parse_fields(
    fields: Mapping[str, object], kind: type[BodyT], unsupported: Mapping[str, Unsupported] = UNSUPPORTED
) -> BodyT:
    """Convert the fields of a form, whose values are texts, by the types of `kind`. Raises RequestError."""
    _check_names(((name, partial(_itself, value)) for name, value in fields.items()), kind, unsupported)
    try:
        return msgspec.convert(fields, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(str(error), kind) from None


def _itself(value: object) -> object:
    return value


def _check_names(
    given: Iterable[tuple[str, Callable[[], object]]],
    kind: type[msgspec.Struct],
    unsupported: Mapping[str, Unsupported],
) -> None:
    fields = kind.__struct_fields__
    for name, value in given:
        if name in fields or name in HARMLESS:
            continue
        known = unsupported.get(name)
        if known is None:
            hint = f" Did you mean `{OTHER_ROUTE[name]}`?" if OTHER_ROUTE.get(name) in fields else nearest(name, fields)
            raise RequestError(f"Unknown parameter: `{name[:64]}`.{hint}", code="unknown_parameter", param=name[:64])
        if value() not in known.inert:
            raise RequestError(f"`{name}` is not supported: {known.reason}.", code="unsupported_parameter", param=name)

"""What stands for the same request (SPEC F7)."""

import msgspec

from headway.adapters.gateway.pictures.bodies import digest
from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.schema import EditBody, ImageBody, ImageLink


class NextBody(ImageBody, frozen=True, kw_only=True):
    """What a later version may know."""

    aspect: str | None = None


def test_a_digest_outlasts_a_version_that_knows_more_fields() -> None:
    asked = {"prompt": "a red circle", "seed": 7}
    now, then = msgspec.convert(asked, ImageBody), msgspec.convert(asked, NextBody)
    path = "/v1/images/generations"
    assert digest(path, now, Files()) == digest(path, then, Files())
    other = msgspec.structs.replace(then, aspect="16:9")
    assert digest(path, then, Files()) != digest(path, other, Files())


def test_a_digest_tells_what_is_asked_inside_fields() -> None:
    path, first, second = "/v1/images/edits", ImageLink("data:,a"), ImageLink("data:,b")
    bodies = [EditBody(prompt="a", images=links) for links in ([first], [second], [first, second], [], None)]
    bodies.append(EditBody(prompt="a", mask=first))
    assert len({digest(path, body, Files()) for body in bodies}) == len(bodies)
    assert digest(path, bodies[0], Files()) != digest("/v1/images/variations", bodies[0], Files())

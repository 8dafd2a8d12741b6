"""Roles of replicas by the kind of request."""

from tests.unit.sched.diffusion.pictures import picture
from tests.unit.sched.router.views import llm

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import TextRequest
from headway.sched.router.roles import role_of


def test_each_kind_of_request_has_replicas_of_its_own() -> None:
    text = TextRequest(RequestId("req-3"), TenantId("t"), ModelId("m"), 10, 20, 0)
    assert [role_of(one) for one in (llm("req-1"), picture("req-2"), text)] == ["llm", "diffusion", "upstream"]

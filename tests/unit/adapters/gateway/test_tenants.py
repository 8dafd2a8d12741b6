import hashlib

import pytest

from headway.adapters.gateway.settings import ApiKey, AuthSettings, TenantSettings
from headway.adapters.gateway.tenants import KeyTable
from headway.core.errors import RequestError


def sha(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def blake(key: str) -> str:
    return "blake2b:" + hashlib.blake2b(key.encode()).hexdigest()


AUTH = AuthSettings(
    keys=(ApiKey(sha("sk-a"), "a"), ApiKey(blake("sk-b"), "b"), ApiKey(sha("sk-root"), "ops", admin=True)),
    tenants={"a": TenantSettings(priority_floor=-5, weight=3)},
)


def test_without_keys_everybody_is_the_default_tenant() -> None:
    # SPEC M5
    table = KeyTable(AuthSettings())
    assert table.tenant(None).id == table.tenant("Bearer anything").id == "default"


@pytest.mark.parametrize(("key", "tenant"), [("sk-a", "a"), ("sk-b", "b"), ("sk-root", "ops")])
def test_a_key_names_its_tenant_by_digest(key: str, tenant: str) -> None:
    assert KeyTable(AUTH).tenant(f"Bearer {key}").id == tenant


def test_a_tenant_brings_its_limits() -> None:
    tenant = KeyTable(AUTH).tenant("bearer sk-a")
    assert (tenant.priority_floor, tenant.weight, tenant.admin) == (-5, 3, False)
    assert KeyTable(AUTH).tenant("Bearer sk-root").admin


@pytest.mark.parametrize("header", [None, "Bearer nope", "Bearer ", "sk-a", "Basic sk-a", "Bearer sk-aa"])
def test_an_unknown_key_is_401(header: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        KeyTable(AUTH).tenant(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert "sk-a" not in str(caught.value)


def test_requests_without_a_key_belong_to_the_anonymous_tenant_when_there_is_one() -> None:
    table = KeyTable(AuthSettings(keys=AUTH.keys, anonymous="a"))
    assert table.tenant(None).id == "a"
    with pytest.raises(RequestError):
        table.tenant("Bearer nope")

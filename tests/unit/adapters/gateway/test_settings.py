import msgspec
import pytest

from headway.adapters.gateway.prepare import GENERATION_ROUTES
from headway.adapters.gateway.settings import (
    ApiKey,
    AuthSettings,
    GatewaySettings,
    SloDefaults,
    TenantSettings,
    check_settings,
)
from headway.core.errors import ConfigError

GOOD = ApiKey("sha256:" + "0" * 64, "a")


def test_defaults_work() -> None:
    # SPEC M1
    check_settings(GatewaySettings(), GENERATION_ROUTES)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (GatewaySettings(auth=AuthSettings(keys=(ApiKey("sk-plain", "a"),))), "auth.keys[0].hash"),
        (GatewaySettings(auth=AuthSettings(keys=(ApiKey("sha256:" + "0" * 63, "a"),))), "auth.keys[0].hash"),
        (GatewaySettings(auth=AuthSettings(keys=(GOOD, GOOD))), "auth.keys[1]"),
        (GatewaySettings(auth=AuthSettings(anonymous="a")), "auth.anonymous"),
        (GatewaySettings(auth=AuthSettings(keys=(GOOD,), tenants={"b": TenantSettings()})), "auth.tenants.b"),
        (GatewaySettings(slo={"/v1/nope": SloDefaults()}), "slo./v1/nope"),
    ],
)
def test_names_the_key_of_what_cannot_work(settings: GatewaySettings, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(settings, GENERATION_ROUTES)
    assert key in str(caught.value)
    assert "sk-plain" not in str(caught.value)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="bdy_bytes"):
        msgspec.convert({"limits": {"bdy_bytes": 1}}, GatewaySettings)

"""Attribute names of spans: OpenTelemetry's `gen_ai.*` (status Development, so they are kept here only) and ours."""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
HEADWAY: Final = "headway"  # provider, service, and first part of every name of ours


def own(name: str) -> str:
    """Return our attribute's name."""
    return f"{HEADWAY}.{name}"

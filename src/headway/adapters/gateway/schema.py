"""Request bodies as structs: names, types and ranges. `fields` lists what is refused or taken without effect.

The OpenAPI document is made from these structs, and validation errors name the field.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Degradation = Literal["max_tokens", "model", "steps", "step_cache", "dtype"]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_options`; `include_obfuscation` pads OpenAI's own streams and has no effect here."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content. Only `text` is served; the others are known to be refused by name."""

    type: str
    text: str | None = None
    image_url: object | None = None
    input_audio: object | None = None
    video_url: object | None = None
    file: object | None = None
    refusal: str | None = None


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message. Fields below `name` must be null or empty: they belong to tools and audio."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[object] | None = None
    audio: object | None = None
    tool_calls: list[object] | None = None
    tool_call_id: str | None = None
    function_call: object | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completions share: OpenAI's fields, then vLLM's. Null is the same as absent."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[Text] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    # vLLM's
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=65_536)] | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    request_id: Name | None = None
    cache_salt: Name | None = None
    session_id: Name | None = None  # names a conversation; `cost_aware` keeps its requests together
    return_token_ids: bool | None = None
    stream_interval: Count | None = None
    allow_degrade: Annotated[list[Degradation], Meta(max_length=8)] | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`. Without a limit the answer may fill the model's context."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`. Without `max_tokens` 16 tokens are generated, as at OpenAI."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt or messages."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    model: Name | None = None
    tokens: list[TokenId]


class EstimateBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/estimates` and `POST /v1/route/explain`: `body` as `endpoint` would get it."""

    endpoint: Literal[
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/images/variations",
        "/v1/videos",
        "/v1/videos/sessions",
    ]
    body: msgspec.Raw

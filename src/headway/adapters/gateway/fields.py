"""Body fields that are not in the schema: taken without effect, or refused by name with the reason.

The API documentation is generated from these tables.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

_ABSENT: Final[tuple[object, ...]] = (None,)


class Unsupported(msgspec.Struct, frozen=True):
    """A known field that is not served. Values in `inert` mean the same as leaving it out."""

    reason: str
    inert: tuple[object, ...] = _ABSENT


# Clients send these without expecting anything of the answer.
HARMLESS: Final[Mapping[str, str]] = {
    "user": "an end-user label for OpenAI's abuse monitoring",
    "safety_identifier": "an end-user label for OpenAI's abuse monitoring",
    "metadata": "labels of OpenAI's dashboard",
    "store": "asks OpenAI to keep the completion; nothing is stored here",
    "service_tier": "a price class of OpenAI",
    "prompt_cache_key": "a routing hint of OpenAI; prefixes are found by content here",
    "prompt_cache_retention": "a cache hint of OpenAI",
    "parallel_tool_calls": "has a meaning with tools only",
}

_TOOLS: Final = "tool calling is not implemented"
_GRAMMAR: Final = "structured output is not implemented"
_MEDIA: Final = "only text is generated here"
_REASONING: Final = "no reasoning model is served"

UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    "tools": Unsupported(_TOOLS, (None, [])),
    "tool_choice": Unsupported(_TOOLS, (None, "none", "auto")),
    "functions": Unsupported(_TOOLS, (None, [])),
    "function_call": Unsupported(_TOOLS, (None, "none", "auto")),
    "response_format": Unsupported(_GRAMMAR, (None, {"type": "text"})),
    "structured_outputs": Unsupported(_GRAMMAR),
    "guided_json": Unsupported(_GRAMMAR),
    "guided_regex": Unsupported(_GRAMMAR),
    "guided_choice": Unsupported(_GRAMMAR),
    "guided_grammar": Unsupported(_GRAMMAR),
    "modalities": Unsupported(_MEDIA, (None, ["text"])),
    "audio": Unsupported(_MEDIA),
    "prediction": Unsupported("predicted outputs are not implemented"),
    "web_search_options": Unsupported("web search is not implemented"),
    "reasoning_effort": Unsupported(_REASONING, (None, "none")),
    "include_reasoning": Unsupported(_REASONING, (None, True, False)),
    "thinking_token_budget": Unsupported(_REASONING),
    "verbosity": Unsupported("no served model has a verbosity", (None, "medium")),
    "best_of": Unsupported("candidates beyond n are not generated", (None, 1)),
    "use_beam_search": Unsupported("beam search is not implemented", (None, False)),
    "length_penalty": Unsupported("beam search is not implemented", (None, 1, 1.0)),
    "early_stopping": Unsupported("beam search is not implemented", (None, False)),
    "bad_words": Unsupported("bad words are not implemented; use logit_bias", (None, [])),
    "prompt_logprobs": Unsupported("log-probabilities of the prompt are not implemented"),
    "prompt_embeds": Unsupported("prompt embeddings are not implemented"),
    "suffix": Unsupported("insertion is not implemented", (None, "")),
    "logits_processors": Unsupported("custom code in requests is not accepted", (None, [])),
    "chat_template": Unsupported("the model's own chat template is used"),
    "documents": Unsupported("document-grounded templates are not implemented", (None, [])),
    "mm_processor_kwargs": Unsupported(_MEDIA),
    "kv_transfer_params": Unsupported("replicas are chosen by Headway, not by the request"),
    "vllm_xargs": Unsupported("vLLM's internal arguments have no meaning here"),
    "return_tokens_as_token_ids": Unsupported("token ids in place of text are not implemented", (None, False)),
    "echo": Unsupported("echo belongs to /v1/completions", (None, False)),
}

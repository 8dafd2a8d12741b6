"""Renders a model's Jinja chat template in a sandbox, as Hugging Face's `apply_chat_template` would."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateError(ValueError):
    """The template cannot render these messages; the message says why."""


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: object, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML; models are trained on plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _today(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """One compiled template. `render` is safe to call from several threads."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special` holds the names that templates use for tokens (`bos_token`, `eos_token`...)."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _today
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        self._special = dict(special)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text. With `continue_final_message` it ends where the last message's content ends.

        Raises TemplateError when the template refuses the messages.
        """
        names = {**self._special, **(extra or {}), "messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render(names)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            # A template is data of the model; every way it fails on these messages is an answer, not a crash.
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        if not continue_final_message:
            return text
        final = str(messages[-1]["content"]).strip()
        at = text.rfind(final)
        if at < 0:
            raise TemplateError("continue_final_message: the chat template does not show the last message's content")
        return text[: at + len(final)]

"""A model's tokenizer as the gateway uses it: encode, chat template, detokenize, and the spelling of one token."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import tokenizers

from headway.adapters.tokenizer.chat_template import ChatTemplate, TemplateError
from headway.adapters.tokenizer.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_table

SPECIAL_NAMES: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
# Text normalizers (NFC and the like) shorten text at most this much; without one, not at all.
NORMALIZER_SHRINKS_BY: Final = 4


class Tokenizer:
    """Wraps one `tokenizers` file. Every method may be called from any thread; encode releases the GIL."""

    def __init__(
        self, backend: tokenizers.Tokenizer, template: str | None = None, special: Mapping[str, str] | None = None
    ) -> None:
        """Raises TemplateError when `template` does not compile."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = None if template is None else ChatTemplate(template, special or {})
        added = backend.get_added_tokens_decoder()
        self._skipped = frozenset(number for number, token in added.items() if token.special)
        vocab = backend.get_vocab(with_added_tokens=True)
        self._table: dict[int, bytes] | None = None
        if isinstance(backend.decoder, tokenizers.decoders.ByteLevel):
            self._table = byte_table(vocab, {number: token.content for number, token in added.items()})
        self.vocab_size = 1 + max(vocab.values(), default=-1)
        self._longest = max((len(token) for token in vocab), default=1)
        if backend.normalizer is not None:
            self._longest *= NORMALIZER_SHRINKS_BY

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of a Hugging Face folder."""
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config: dict[str, object] = {}
        if (path := folder / "tokenizer_config.json").is_file():
            config = json.loads(path.read_text(encoding="utf-8"))
        return cls(backend, _template_text(folder, config), _special(config))

    def tokens_at_least(self, characters: int) -> int:
        """A lower bound on the tokens of a text of that many characters, without encoding it."""
        return -(-characters // self._longest)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Tokens of `text`; special tokens that it spells out become those tokens."""
        return tuple(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of a conversation. Raises TemplateError."""
        if self._template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            extra=extra,
        )

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental detokenizer."""
        if self._table is not None:
            return ByteDetokenizer(self._table, self._skipped if skip_special_tokens else frozenset())
        return WindowDetokenizer(self._window_decoder(skip_special_tokens))

    def spell(self, token: int) -> str:
        """The token alone as text, special tokens included; U+FFFD for incomplete characters."""
        if self._table is not None:
            return self._table.get(token, b"").decode("utf-8", errors="replace")
        return str(self._backend.decode([token], skip_special_tokens=False))

    def spell_bytes(self, token: int) -> bytes:
        """The token's bytes; what OpenAI calls `bytes` in logprobs."""
        if self._table is not None:
            return self._table.get(token, b"")
        name = self._backend.id_to_token(token) or ""
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes.fromhex(name[3:5])
        return name.replace("▁", " ").encode()

    def name(self, token: int) -> str:
        """The token as the vocabulary writes it; empty for unknown ids."""
        return self._backend.id_to_token(token) or ""

    def _window_decoder(self, skip: bool) -> Callable[[Sequence[int]], str]:
        def decode(tokens: Sequence[int]) -> str:
            return str(self._backend.decode(tokens, skip_special_tokens=skip))

        return decode


def _template_text(folder: Path, config: Mapping[str, object]) -> str | None:
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return None if template is None else str(template)


def _special(config: Mapping[str, object]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            out[name] = value
    return out

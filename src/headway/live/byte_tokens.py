"""The tokenizer of the synthetic engine: one token per byte, made in code, so that it needs no model and no file."""

from typing import Final

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headway.adapters.tokenizer import Tokenizer
from headway.adapters.tokenizer.detokenizer import byte_alphabet

START: Final = 256
EOS: Final = 257
VOCAB_SIZE: Final = 258
_SPECIAL: Final = {"<|start|>": START, "<|end|>": EOS}
_TEMPLATE: Final = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Token n is byte n; then the two marks of the chat template."""
    vocab = dict(byte_alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    return Tokenizer(backend, _TEMPLATE, {"eos_token": "<|end|>"})

"""Tokens to text, one token at a time, equal to decoding them all at once.

Two ways: byte-level vocabularies map each token to bytes and decode UTF-8 incrementally (exact, one table look-up per
token); every other decoder is asked for a short window of tokens, before and with the new one.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

REPLACEMENT: Final = "\ufffd"
# A UTF-8 character has at most 4 bytes, so at most 4 byte tokens; a longer run without a character is not text.
HELD_TOKENS_MAX: Final = 8


class Detokenizer(Protocol):
    """Text of a growing token sequence. An incomplete character is held back until it is complete or `flush`."""

    @property
    def holds(self) -> bool:
        """True while something of the pushed tokens is held back."""
        ...

    def push(self, token: int) -> str:
        """Text that this token completes."""
        ...

    def flush(self) -> str:
        """What is still held, at the end of the sequence."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies. `table[token]` is the token's bytes; `skipped` tokens have no text."""

    def __init__(self, table: Mapping[int, bytes], skipped: frozenset[int]) -> None:
        self._table, self._skipped = table, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def holds(self) -> bool:
        """True within a character."""
        return self._decoder.getstate()[0] != b""

    def push(self, token: int) -> str:
        """Text that this token completes; unknown and skipped tokens have none."""
        if token in self._skipped:
            return ""
        return self._decoder.decode(self._table.get(token, b""))

    def flush(self) -> str:
        """The held bytes, which never became a character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder. `decode` turns a token list into text.

    Decoders look at neighbours (spaces, byte runs), so the new text is the difference between the window without and
    with the new tokens. The window moves on whenever text was emitted: O(1) per token.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._seen = 0  # tokens of the window whose text is out
        self._text = ""  # text of those

    @property
    def holds(self) -> bool:
        """True while tokens of the window have no text yet."""
        return len(self._window) > self._seen

    def push(self, token: int) -> str:
        """Text that this token completes."""
        self._window.append(token)
        text = self._decode(self._window)
        incomplete = text.endswith(REPLACEMENT) and len(self._window) - self._seen < HELD_TOKENS_MAX
        if incomplete or len(text) <= len(self._text):
            return self._wait(text)
        return self._emit(text)

    def flush(self) -> str:
        """The held tokens as the decoder renders them."""
        text = self._decode(self._window)
        return self._emit(text) if len(text) > len(self._text) else ""

    def _wait(self, text: str) -> str:
        # Tokens without text (skipped specials) must not make the window grow without end.
        if text == self._text and len(self._window) - self._seen >= HELD_TOKENS_MAX:
            del self._window[self._seen :]
        return ""

    def _emit(self, text: str) -> str:
        new = text[len(self._text) :]
        self._window = self._window[self._seen :]
        self._seen = len(self._window)
        self._text = self._decode(self._window)
        return new


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: the printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    out = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in printable)
    out.update({chr(256 + number): byte for number, byte in enumerate(shifted)})
    return out


def byte_table(vocab: Mapping[str, int], added: Mapping[int, str]) -> dict[int, bytes]:
    """Return the bytes of every token of a byte-level vocabulary, as its decoder spells them."""
    alphabet = byte_alphabet()
    table: dict[int, bytes] = {}
    for token, number in [*vocab.items(), *((content, number) for number, content in added.items())]:
        # The decoder takes a token literally as soon as one of its characters stands for no byte.
        table[number] = bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode()
    return table

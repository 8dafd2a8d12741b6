from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.adapters.gateway.fakes import EOS, toy_tokenizer

from headway.adapters.gateway.choice import LOGPROB_MIN, Choice, Piece
from headway.adapters.gateway.prepare import Answer
from headway.core.effects import Deliver, End
from headway.core.ids import RequestId
from headway.core.messages import TokenScores
from headway.core.request import FinishReason

TOY = toy_tokenizer()
REQUEST = RequestId("req-1")
(STOP_TOKEN,) = TOY.encode(EOS, add_special_tokens=False)
PLAIN = Answer(
    "id", "id", "toy", 0, True, False, 1, False, False, 1, (), False, frozenset({STOP_TOKEN}), 0, True, None, False,
    False,
)  # fmt: skip


def tokens_of(text: str) -> tuple[int, ...]:
    return TOY.encode(text, add_special_tokens=False)


def play(
    answer: Answer, tokens: Sequence[int], reason: FinishReason, *, scored: bool = False
) -> tuple[Piece, Choice, list[int]]:
    """One token per delivery."""
    stops: list[int] = []
    choice, whole = Choice(answer, TOY, stops.append), Piece()
    for index, token in enumerate(tokens):
        scores = (TokenScores(-1.0, (token, 5), (-1.0, float("-inf"))),) if scored else ()
        whole.add(choice.push(Deliver(REQUEST, index, (token,), scores)))
    whole.add(choice.end(End(REQUEST, reason)))
    return whole, choice, stops


def change(**fields: object) -> Answer:
    return msgspec.structs.replace(PLAIN, **fields)


def test_the_stop_token_counts_and_is_no_text() -> None:
    piece, choice, _ = play(PLAIN, [*tokens_of("one two"), STOP_TOKEN], FinishReason.STOP)
    assert (piece.text, choice.finish_reason, choice.stop_reason) == ("one two", "stop", STOP_TOKEN)
    assert choice.tokens == len(tokens_of("one two")) + 1 == len(piece.tokens)


def test_an_ordinary_token_that_stops_is_no_text_either() -> None:
    (dot,) = tokens_of(".")
    piece, _, _ = play(change(stop_tokens=frozenset({dot})), tokens_of("a."), FinishReason.STOP)
    assert piece.text == "a"


def test_a_stop_token_that_did_not_stop_is_text() -> None:
    (dot,) = tokens_of(".")
    piece, choice, _ = play(change(stop_tokens=frozenset({dot})), tokens_of("a.b."), FinishReason.LENGTH)
    assert (piece.text, choice.finish_reason) == ("a.b.", "length")


def test_the_stop_token_is_text_when_asked_for() -> None:
    answer = change(include_stop=True, skip_special=False)
    assert play(answer, [*tokens_of("a"), STOP_TOKEN], FinishReason.STOP)[0].text == "a" + EOS


def test_a_stop_string_ends_the_text_inside_its_token_and_says_where() -> None:
    # SPEC B5
    tokens = tokens_of("one two three four")
    piece, choice, stops = play(change(stops=("wo th",)), tokens, FinishReason.STOP)
    assert (piece.text, choice.finish_reason, choice.stop_reason) == ("one t", "stop", "wo th")
    assert len(stops) == 1
    assert "wo th" in TOY.decode(tokens[: stops[0] + 1])
    assert "wo th" not in TOY.decode(tokens[: stops[0]])
    assert choice.tokens == stops[0] + 1


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    choice = Choice(change(stops=("two",)), TOY, lambda index: None)
    piece = choice.push(Deliver(REQUEST, 0, tokens_of("one two three four five")))
    assert piece.text == "one "
    assert choice.tokens == len(tokens_of("one two"))
    assert choice.push(Deliver(REQUEST, 9, tokens_of(" six"))) == Piece()


def test_a_stop_string_wins_over_the_reason_of_the_end() -> None:
    choice = Choice(change(stops=("two",)), TOY, lambda index: None)
    choice.push(Deliver(REQUEST, 0, tokens_of("one two")))
    choice.end(End(REQUEST, FinishReason.CANCELLED))
    assert choice.finish_reason == "stop"


def test_stop_strings_do_not_count_within_min_tokens() -> None:
    tokens = tokens_of("two one two")
    piece, _, _ = play(change(stops=("two",), min_tokens=2), tokens, FinishReason.STOP)
    assert piece.text == "two one "


def test_held_text_comes_out_at_the_end() -> None:
    piece, choice, _ = play(change(stops=("two!",)), tokens_of("one two"), FinishReason.LENGTH)
    assert (piece.text, choice.finish_reason) == ("one two", "length")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(deadline=None)
def test_tokens_spell_the_text(text: str) -> None:
    answer = change(logprobs=1)
    piece, choice, _ = play(answer, [*tokens_of(text), STOP_TOKEN], FinishReason.STOP, scored=True)
    spelled = "".join(entry.token for entry in piece.logprobs)
    assert spelled.startswith(piece.text)
    assert len(piece.logprobs) == choice.tokens
    assert piece.logprobs[-1].token == EOS


def test_tokens_spell_even_a_character_that_stays_incomplete() -> None:
    piece, _, _ = play(change(logprobs=1), tokens_of("a👍")[:-1], FinishReason.LENGTH, scored=True)
    assert "".join(entry.token for entry in piece.logprobs) == piece.text == "a\ufffd"


def test_impossible_tokens_have_a_finite_logprob() -> None:
    piece, _, _ = play(change(logprobs=2), tokens_of("a"), FinishReason.LENGTH, scored=True)
    assert [top.logprob for top in piece.logprobs[0].top_logprobs] == [-1.0, LOGPROB_MIN]


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.LOST])
def test_an_end_without_answer_has_no_finish_reason(reason: FinishReason) -> None:
    assert play(PLAIN, tokens_of("a"), reason)[1].finish_reason is None

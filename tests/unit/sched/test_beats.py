from headway.sched.beats import Beats, Row


def test_a_row_that_follows_has_a_token_of_every_beat_since() -> None:
    beats, row = Beats(), Row()
    row.told.append(9)
    beats.tick(1, 4, 400)  # before it followed
    row.follow(beats)
    beats.tick(1, 5, 500)
    beats.tick(1, 6, 600)
    assert (row.tokens, row.last_token_ns, row.token_step) == ([9, 1, 1], 600, 6)


def test_a_row_that_parted_keeps_what_it_had() -> None:
    beats, row = Beats(), Row()
    row.follow(beats)
    beats.tick(1, 5, 500)
    row.part()
    beats.tick(1, 6, 600)
    assert (row.tokens, row.last_token_ns, row.token_step) == ([1], 500, 5)


def test_following_again_does_not_count_what_came_between() -> None:
    beats, row = Beats(), Row()
    for _ in range(2):
        row.follow(beats)
        beats.tick(1, 5, 500)
        row.part()
        beats.tick(1, 6, 600)
    assert row.tokens == [1, 1]

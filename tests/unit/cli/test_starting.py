"""What a start says while it lasts (SPEC A13)."""

from headway import __version__
from headway.cli.starting import Starting


class Bench:
    """A start with a clock that is set by hand."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.now_s = 0.0
        self.told: list[str] = []
        self.drawn: list[str] = []
        self.starting = Starting(self.told.append, lambda: self.now_s, self.drawn.append if is_terminal else None)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.starting.tick()


# SPEC A13
def test_a_log_has_a_line_only_where_nothing_else_was_said_for_ten_seconds() -> None:
    bench = Bench()
    bench.starting.does("serve", "importing what it needs")
    bench.wait(9)
    assert bench.told == []
    bench.wait(12)
    assert bench.told == ["serve: importing what it needs, for 10 s", "serve: importing what it needs, for 20 s"]
    bench.starting.loading({"rep-0": "smol", "rep-1": "tiny-wan"})
    bench.wait(6)
    bench.starting.heard("rep-0", "load: 64 KV blocks")
    bench.wait(9)
    assert len(bench.told) == 2
    bench.wait(1)
    assert bench.told[2:] == [
        "smol on rep-0: load: 64 KV blocks, for 10 s; tiny-wan on rep-1: its process starts, for 16 s"
    ]


def test_who_is_ready_is_waited_for_no_more_unless_it_is_lost() -> None:
    bench = Bench()
    bench.starting.loading({"rep-0": "smol", "rep-1": "tiny-wan"})
    bench.starting.heard("rep-0", "ready after 5.0 s: smol is served")
    bench.starting.heard("rep-0", "warm: 64x64")
    assert bench.starting.line() == "tiny-wan on rep-1: its process starts, for 0 s"
    bench.starting.heard("rep-0", "lost (incarnation 1): killed")
    bench.starting.heard("rep-0", "import: torch")
    assert "smol on rep-0: import: torch" in bench.starting.line()


def test_a_terminal_has_one_line_that_is_redrawn_and_makes_way() -> None:
    bench = Bench(is_terminal=True)
    bench.starting.does("serve", "looking for its models")
    bench.wait(2)
    assert bench.drawn == [f"\r\x1b[Kserve: looking for its models, for {second} s" for second in (1, 2)]
    bench.starting.heard("model", "fetching")
    assert bench.drawn[2:] == ["\r\x1b[K"]
    bench.starting.heard("model", "fetched")
    assert len(bench.drawn) == 3  # nothing stands there
    assert bench.told == []


def test_it_says_at_once_that_it_starts_and_ends_with_its_block() -> None:
    bench = Bench()
    with bench.starting.shown(is_at_once=True):
        assert bench.told == [f"starting Headway {__version__}"]
        assert bench.starting.line() == "serve: importing what it needs, for 0 s"
    bench.wait(30)
    assert len(bench.told) == 1
    quiet = Bench()
    with quiet.starting.shown(is_at_once=False):
        quiet.wait(30)
    assert quiet.told == []


def test_once_it_is_over_nothing_more_is_said() -> None:
    bench = Bench()
    bench.starting.does("serve", "importing what it needs")
    bench.starting.over()
    bench.wait(30)
    assert bench.told == []

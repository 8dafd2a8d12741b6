from tests.unit.sched.router.rivals import names
from tests.unit.sched.router.views import View, llm

from headway.sched.router.policies.cache_aware import CacheAware

POLICY = CacheAware(CacheAware.Params())
LONG = llm("req-1", prompt=1000)


def test_follows_the_longest_prefix() -> None:  # SPEC A1
    views = [View("rep-a"), View("rep-b", hit_tokens=320, requests=3), View("rep-c", hit_tokens=640, requests=3)]
    assert names(POLICY.rank(LONG, views, 0)) == ["rep-c", "rep-b", "rep-a"]


def test_a_miss_goes_to_the_least_load() -> None:  # sglang#14305: a miss went to the smallest tree, however loaded
    views = [View("rep-a", requests=9), View("rep-b", requests=2), View("rep-c", requests=5)]
    assert names(POLICY.rank(LONG, views, 0))[0] == "rep-b"


def test_one_hot_replica_does_not_cost_others_their_locality() -> None:  # vllm-router#238
    views = [View("rep-a", requests=500), View("rep-b", requests=3, hit_tokens=512), View("rep-c", requests=1)]
    assert names(POLICY.rank(LONG, views, 0))[0] == "rep-b"


def test_a_hot_holder_loses_to_the_next_holder_and_not_to_nobody() -> None:  # sglang#32195
    views = [
        View("rep-a", requests=90, hit_tokens=900),
        View("rep-b", requests=4, hit_tokens=600),
        View("rep-c", requests=1),
    ]
    assert names(POLICY.rank(LONG, views, 0)) == ["rep-b", "rep-c", "rep-a"]


def test_a_holder_is_left_when_more_tokens_queue_there_than_the_hit_saves() -> None:  # sglang#25466
    near = [View("rep-a", queued_tokens=1000, hit_tokens=640), View("rep-b")]
    assert names(POLICY.rank(LONG, near, 0))[0] == "rep-a"
    far = [View("rep-a", queued_tokens=1200, hit_tokens=640), View("rep-b")]
    assert names(POLICY.rank(LONG, far, 0))[0] == "rep-b"


def test_a_replica_without_free_kv_takes_nothing_while_another_has_room() -> None:  # smg#1621
    views = [View("rep-a", kv_usage=0.99, hit_tokens=640), View("rep-b", requests=5)]
    assert names(POLICY.rank(LONG, views, 0))[0] == "rep-b"


def test_a_prefix_that_everybody_holds_speaks_for_nobody() -> None:  # production-stack#957
    views = [View("rep-a", requests=4, hit_tokens=640), View("rep-b", requests=1, hit_tokens=624)]
    assert names(POLICY.rank(LONG, views, 0))[0] == "rep-b"


def test_counts_tokens_saved_and_not_their_share_of_the_prompt() -> None:  # GAIE#2561
    short = [View("rep-a", requests=3, hit_tokens=48), View("rep-b", requests=1)]
    assert names(POLICY.rank(llm("req-1", prompt=50), short, 0))[0] == "rep-b"

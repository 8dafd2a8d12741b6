from headway.bench.config_diff import UNSET, differing, flat


def test_pools_are_named_and_other_lists_are_values() -> None:
    tree = {"seed": 1, "pools": [{"name": "chat", "replicas": 2}, {"replicas": 1}], "sizes": [1, 2]}
    assert dict(flat(tree)) == {
        "seed": 1,
        "pools.chat.name": "chat",
        "pools.chat.replicas": 2,
        "pools.1.replicas": 1,
        "sizes": [1, 2],
    }


def test_only_keys_that_differ_are_told_and_what_is_not_there_is_unset() -> None:
    first = {"a": {"b": 1, "c": 2}, "d": None}
    second = {"a": {"b": 1, "c": 3}, "d": None, "e": "x"}
    assert differing([first, second, first]) == {"a.c": [2, 3, 2], "e": [UNSET, "x", UNSET]}


def test_the_same_configurations_differ_in_nothing() -> None:
    assert differing([{"a": [1]}, {"a": [1]}]) == {}

"""The benchmark of decisions times each number of workers."""

from bench import decisions


def test_each_number_of_workers_has_a_row_for_each_way_to_know_a_prompt() -> None:
    rows = list(decisions.rows((1, 3), rounds=1))
    assert [row["row"] for row in rows] == [
        f"{workers} workers, by {known}" for known in ("text", "blocks") for workers in (1, 3)
    ]
    assert all(row["ours"] > 0 for row in rows)


def test_what_is_timed_is_decided_by_what_is_known() -> None:
    for blocks in (False, True):
        fleet, prompt = decisions.fleet(3, blocks=blocks), decisions.prompts(blocks=blocks)[0]
        first = decisions.routed(fleet, prompt)
        assert {decisions.routed(fleet, prompt) for _ in range(5)} == {first}

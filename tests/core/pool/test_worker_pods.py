import pytest

from cachefleet_core.pool.worker_pods import is_of_pool

LONG = "p" * 45


@pytest.mark.parametrize(
    ("pod", "pool"),
    [
        ("demo-workers-6d4cf56db6-x7k2p", "demo"),
        ("demo-workers-1-aaaaa", "demo"),
        ("demo-workers-workers-1-aaaaa", "demo-workers"),
        # A ReplicaSet's name with its dash is cut to 58 characters.
        (f"{LONG}-workers-6d4cabcde", LONG),
        (f"{'p' * 38}-workers-6d4cf56db6-x7k2p", "p" * 38),
        (f"{'p' * 39}-workers-6d4cf56db6x7k2p", "p" * 39),
        (f"{'p' * 58}x7k2p", "p" * 60),
    ],
)
def test_a_replica_set_names_its_pods(pod: str, pool: str) -> None:
    assert is_of_pool(pod, pool)


@pytest.mark.parametrize(
    "pod",
    [
        "",
        "demo",
        "nginx",
        "demo-copy",
        "demo-workers-0",
        "demo-workers-aaaaa",
        "demo-workers--aaaaa",
        "demo-workers-1-aaaa",
        "demo-workers-1-2-aaaaa",
        "demo-workers-12345678901-aaaaa",
        "demo-workers-1-AAAAA",
        "other-workers-1-aaaaa",
        "x-demo-workers-1-aaaaa",
    ],
)
def test_other_names_are_of_other_pods(pod: str) -> None:
    assert not is_of_pool(pod, "demo")

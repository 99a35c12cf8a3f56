"""What is left of finished requests where no garbage collection helps: objects in cycles of references."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.controlplane.waiting import until


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect once, and not again until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def gone(*kinds: type) -> None:
    """Wait until no object of these classes is left; TimeoutError, which names those that stay."""
    try:
        await until(lambda: not _left(kinds), seconds=10)
    except TimeoutError as error:
        raise TimeoutError(f"these stay: {dict(_left(kinds))}") from error


def _left(kinds: tuple[type, ...]) -> Counter[str]:
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)

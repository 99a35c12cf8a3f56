"""Where vLLM's scheduler can be made to skip a request at its admission, found in its source.

``late`` (0.30 and newer): ``_ec_transfer_pending`` is called once the hit is known, including the connector's share,
and before blocks are allocated; True skips the request.
``early`` (0.28, 0.29): the same loop calls ``_try_promote_blocked_waiting_request`` for requests that wait for
something; with every request reported as waiting, it is called for all. The hit is then looked up here, and once more
by vLLM.

Both see what earlier requests of the same step have stored.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, Final

LATE: Final = "late"
EARLY: Final = "early"
NONE: Final = ""


def hook_of(base: Any) -> str:
    """The hook for a scheduler's class; NONE where neither is there and called."""
    called = _calls_of_schedule(base)
    if called.get("_ec_transfer_pending") == 2 and called.get("allocate_slots"):
        return LATE
    early = {"_is_blocked_waiting_status": 1, "_try_promote_blocked_waiting_request": 1}
    if early.items() <= called.items() and hasattr(base, "_get_local_prefix_cache_hit"):
        return EARLY
    return NONE


def _calls_of_schedule(base: Any) -> dict[str, int]:
    """Methods that ``schedule`` calls, with the number of positional arguments."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(base.schedule)))
    except (OSError, TypeError, SyntaxError):
        return {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = {call.func.attr: len(call.args) for call in calls if isinstance(call.func, ast.Attribute)}
    return {name: count for name, count in named.items() if name == "allocate_slots" or hasattr(base, name)}


def hooked(base: Any, hook: str) -> Any:
    """``base`` with the hook, which calls ``cachefleet_admission`` where that is set."""
    return {LATE: _late, EARLY: _early}.get(hook, lambda unhooked: unhooked)(base)


def _late(base: Any) -> Any:
    class LateHook(base):  # type: ignore[misc]
        def _ec_transfer_pending(self, request: Any, num_computed_tokens: int) -> bool:
            admission = self.cachefleet_admission
            if admission is not None and admission.refuses(request, num_computed_tokens):
                return True
            pending: bool = super()._ec_transfer_pending(request, num_computed_tokens)
            return pending

    return LateHook


def _early(base: Any) -> Any:
    class EarlyHook(base):  # type: ignore[misc]
        cachefleet_planning = False

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.cachefleet_planning = self.cachefleet_admission is not None
            try:
                return super().schedule(*args, **kwargs)
            finally:
                self.cachefleet_planning = False

        def _is_blocked_waiting_status(self, status: Any) -> bool:
            return self.cachefleet_planning or bool(super()._is_blocked_waiting_status(status))

        def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
            blocked = super()._is_blocked_waiting_status(request.status)
            if blocked and not super()._try_promote_blocked_waiting_request(request):
                return False
            if request.num_stale_output_tokens > 0 and not request.drop_stale_output:
                return True  # the loop skips it by itself until its last tokens are out
            admission = self.cachefleet_admission
            return admission is None or not admission.refuses(request)

    return EarlyHook


def computed_tokens(scheduler: Any, request: Any) -> int:
    """The hit, local and by the connector, as vLLM's loop is about to find it."""
    _, local, _, diverged = scheduler._get_local_prefix_cache_hit(request)  # noqa: SLF001 - vLLM's own look-up
    if scheduler.connector is None:
        return int(local)
    partial = local % scheduler.block_size
    external, _ = scheduler.connector.get_num_new_matched_tokens(request, local - partial)
    if external is None:
        return int(request.num_tokens)  # not known yet: the loop skips it by itself
    if partial:
        external = max(0, external - partial)
    if diverged and not external:
        local = scheduler.kv_cache_manager.get_computed_blocks(request)[1]
    return int(local + external)

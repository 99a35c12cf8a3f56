"""Short renders stay on the event loop: to hand the template and the text to a thread and back takes longer than both.

Only renders for which ``staying`` is said: of bodies of a bounded size, by the server's own template. All others, and
texts that are not memoised, go to vLLM's executor as ever; so does what vLLM renders for requests of its own routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

TEMPLATE_ELSEWHERE: Final = "_apply_chat_template_async"
SHORT_TEXT: Final = 32 * 1024
"""Characters that are encoded on the event loop; templates make 4 MB of 16 KiB of nested lists, which takes seconds."""
_TEMPLATE: Final = ("vllm.renderers.hf", "safe_apply_chat_template")

_staying: ContextVar[bool] = ContextVar("cachefleet_staying", default=False)

Call = Callable[..., Any]


@contextmanager
def staying(*, short: bool) -> Iterator[None]:
    """Whether what is rendered meanwhile, in this context, is short."""
    token = _staying.set(short)
    try:
        yield
    finally:
        _staying.reset(token)


def stays() -> bool:
    """Whether the present render is short."""
    return _staying.get()


def text_stays(text: str) -> bool:
    """Whether a text of the present render is encoded on the event loop."""
    return stays() and len(text) <= SHORT_TEXT


def keep_templates(renderer: Any) -> None:
    """Have one of vLLM's renderers apply templates on the event loop where a render is short; others are left alone."""
    elsewhere = getattr(renderer, TEMPLATE_ELSEWHERE, None)
    module, name = _TEMPLATE
    if elsewhere is not None and type(renderer).__module__ == module:
        setattr(renderer, TEMPLATE_ELSEWHERE, _kept(getattr(import_module(module), name), elsewhere))


def _kept(apply: Call, elsewhere: Call) -> Call:
    def applied(*args: Any, **kwargs: Any) -> Any:
        return _now(apply, *args, **kwargs) if stays() else elsewhere(*args, **kwargs)

    return applied


async def _now(call: Call, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)

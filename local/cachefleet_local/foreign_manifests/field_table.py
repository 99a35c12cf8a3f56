"""A reader of manifests as a table: the path of each known field, and what happens with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from cachefleet_core.pool.validation_problems import PoolError, Problem, preview
from cachefleet_local.foreign_manifests.draft import PoolDraft, text, truth

Action = Callable[[PoolDraft, str, Any], None]
"""Takes one field: the draft, the field's path in the document, its value."""
Table = Mapping[str, Action]
"""By the path of a field, which begins with a dot; ``[]`` stands for each entry of a list."""

AUTOSCALER: Final = "make an autoscaler for the pool's scale subresource, and leave spec.replicas out"
ONE_POD: Final = "a worker is one pod, on one node"
"""What several readers say of a field without a counterpart."""
_TEMPLATE: Final = "{{"
_CHAT_TEMPLATE: Final = "chatTemplate"
"""A field whose own language has these braces."""


def read_fields(draft: PoolDraft, table: Table, value: Any, *, source: str = "", path: str = "") -> None:
    """Take each field of a document by a table; one that no path of the table begins with has no counterpart."""
    if value is None or value in ("", [], {}):
        return
    if (action := table.get(path)) is not None:
        if not path.endswith(_CHAT_TEMPLATE):
            refuse_templates(value, source)
        action(draft, source, value)
    elif path and not any(known.startswith((f"{path}.", f"{path}[")) for known in table):
        draft.lacks(source, "is not a field that is read here")
    else:
        for step, child in _children(source, value):
            entry = isinstance(step, int)
            below = f"{path}[]" if entry else f"{path}.{step}"
            read_fields(draft, table, child, source=f"{source}[{step}]" if entry else f"{source}.{step}", path=below)


def _children(source: str, value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list):
        return enumerate(value)
    raise PoolError([Problem(source.removeprefix("."), preview(value), "must be a mapping or a list")])


def refuse_templates(value: Any, source: str) -> None:
    """PoolError with the path of each text that is a template."""
    problems = [Problem(path.removeprefix("."), "", _UNRENDERED) for path in _templates(value, source)]
    if problems:
        raise PoolError(problems)


_UNRENDERED: Final = "is a template, which only its chart can render: write the value that it stands for"


def _templates(value: Any, source: str) -> Iterator[str]:
    if isinstance(value, str) and _TEMPLATE in value:
        yield source
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _templates(child, f"{source}.{name}")
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _templates(child, f"{source}[{number}]")


def to(path: str, convert: Callable[[str, Any], Any] = text) -> Action:
    """The field becomes a field of the pool's spec."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        draft.put(path, convert(source, value))
        draft.became(source, f"spec.{path}")

    return act


def to_pod(path: str) -> Action:
    """The field becomes the same field of the worker's pod, as it is; lists are joined."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        where = f"podTemplate.{path}"
        if isinstance(value, list):
            draft.append(where, value)
        elif isinstance(value, Mapping):
            draft.put(where, {**(draft.get(where) or {}), **value})
        else:
            draft.put(where, value)
        draft.became(source, f"spec.{where}")

    return act


def to_argument(option: str, *, value_too: bool = True) -> Action:
    """The field becomes an option in ``engine.extraArgs``; without a value it is one that true switches on."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        if value_too:
            draft.arguments += [option, str(value)]
        elif not truth(source, value):
            draft.spares(source, "it is vLLM's default")
            return
        else:
            draft.arguments.append(option)
        draft.became(source, f"spec.engine.extraArgs ({option})")

    return act


def lacks(why: str) -> Action:
    """The field has no counterpart."""
    return lambda draft, source, _: draft.lacks(source, why)


def spares(why: str) -> Action:
    """The field is not needed."""
    return lambda draft, source, _: draft.spares(source, why)


def lacks_if_enabled(why: str) -> Action:
    """A section that has no counterpart, unless its own ``enabled`` is false or absent."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        if isinstance(value, Mapping) and truth(f"{source}.enabled", value.get("enabled", False)):
            draft.lacks(source, why)
        else:
            draft.spares(source, "it is switched off")

    return act


def in_order(*actions: Action) -> Action:
    """Several actions with one field."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        for action in actions:
            action(draft, source, value)

    return act


METADATA: Final[Table] = {
    ".metadata.name": spares("it names the pool"),
    ".metadata.namespace": spares("it is the pool's namespace"),
    ".metadata.labels": spares("give the pool the labels that it should have"),
    ".metadata.annotations": spares("they are for other controllers"),
    **{
        f".metadata.{name}": spares("the API server writes it")
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "finalizers")
    },
    ".apiVersion": spares("it says what the document is"),
    ".kind": spares("it says what the document is"),
    ".status": spares("its own controller writes it"),
}
"""What all objects of Kubernetes have."""

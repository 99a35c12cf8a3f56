"""Documents of other projects: which reader each is for, and the pools that all of them make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from cachefleet_core.pool.manifest import documents
from cachefleet_core.pool.validation_problems import PoolError, Problem, preview
from cachefleet_local.foreign_manifests import production_stack
from cachefleet_local.foreign_manifests.draft import PoolDraft, model_name, pool_name
from cachefleet_local.foreign_manifests.inference_service import inference_service
from cachefleet_local.foreign_manifests.model_service import model_service

Reader = Callable[[PoolDraft, Mapping[str, Any]], list[PoolDraft]]

OBJECTS: Final[Mapping[tuple[str, str], Reader]] = {
    ("production-stack.vllm.ai", "VLLMRuntime"): production_stack.runtime,
    ("serving.kserve.io", "LLMInferenceService"): inference_service,
}
"""Readers of objects, by API group and kind."""
VALUES: Final[Mapping[str, tuple[str, Reader]]] = {
    "servingEngineSpec": ("values of production-stack's chart", production_stack.values),
    "modelArtifacts": ("values of llm-d-modelservice", model_service),
}
"""Readers of a chart's values, by a section that they have."""
KNOWN: Final = "VLLMRuntime, LLMInferenceService, and values with servingEngineSpec or modelArtifacts"
_LIST: Final = "List"
_TEMPLATE: Final = "{{"


def read_text(text: str, file: str, *, namespace: str = "") -> list[PoolDraft]:
    """The pools of a file's documents. PoolError with every problem of every document."""
    drafts: list[PoolDraft] = []
    problems: list[Problem] = []
    for where, document in _documents(text, file):
        try:
            drafts += [_named(draft) for draft in _read(document, where, namespace)]
        except PoolError as error:
            problems += [replace(problem, where=where) for problem in error.problems]
    if problems:
        raise PoolError(problems)
    return drafts


def _documents(text: str, file: str) -> Iterator[tuple[str, Any]]:
    """Each document with its place; those of a List are several."""
    try:
        found = documents(text)
    except PoolError as error:
        raise PoolError([_explained(replace(problem, where=file), text) for problem in error.problems]) from None
    for number, document in found:
        where = file if len(found) == 1 else f"{file}, document {number}"
        items = document.get("items") if isinstance(document, Mapping) and document.get("kind") == _LIST else None
        if isinstance(items, list):
            yield from ((f"{where}, item {place}", item) for place, item in enumerate(items, 1))
        else:
            yield where, document


def _explained(problem: Problem, text: str) -> Problem:
    """A template is often no YAML: say so."""
    if _TEMPLATE not in text:
        return replace(problem, allowed=problem.allowed.replace("one PrefixCachePool", f"one of {KNOWN}"))
    return replace(problem, allowed=f"{problem.allowed}; it has templates ({_TEMPLATE}...): write what they stand for")


def _read(document: Any, where: str, namespace: str) -> list[PoolDraft]:
    if not isinstance(document, Mapping):
        raise PoolError([Problem("", preview(document), f"must be one of {KNOWN}")])
    if "kind" in document or "apiVersion" in document:
        return _read_object(document, where, namespace)
    for section, (what, reader) in VALUES.items():
        if section in document:
            if not isinstance(document[section], Mapping):
                raise PoolError([Problem(section, preview(document[section]), "must be a mapping")])
            return reader(PoolDraft(origin=f"{what} ({where})", namespace=namespace), document)
    raise PoolError([Problem("", "a mapping without kind", f"must be one of {KNOWN}")])


def _read_object(document: Mapping[str, Any], where: str, namespace: str) -> list[PoolDraft]:
    kind, group = str(document.get("kind")), str(document.get("apiVersion")).partition("/")[0]
    reader = OBJECTS.get((group, kind))
    if reader is None:
        raise PoolError([Problem("kind", preview(f"{group} {kind}"), f"is not read here; known are {KNOWN}")])
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(name, str) or not name:
        raise PoolError([Problem("metadata.name", "missing", "must be given")])
    own = namespace or str(metadata.get("namespace") or "")
    origin = f"{kind} {own or 'default'}/{name} ({where})"
    return reader(PoolDraft(origin=origin, name=pool_name(name), namespace=own), document)


def _named(draft: PoolDraft) -> PoolDraft:
    """Give a model a name where only its source is known."""
    source = draft.get("model.source")
    if source and not draft.get("model.name"):
        draft.put("model.name", model_name(source))
    return draft

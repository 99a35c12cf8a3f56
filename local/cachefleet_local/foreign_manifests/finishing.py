"""What no other project's manifest tells, and the YAML of finished pools with what became of each field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from cachefleet_core.pool.spec import API_VERSION, KIND
from cachefleet_core.pool.validation_problems import PoolError, Problem
from cachefleet_local.foreign_manifests.draft import Outcome, PoolDraft

_WIDTH: Final = 116


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a pool needs and other manifests lack: the pool's field, and the option that gives it."""

    path: str
    option: str
    what: str


WEIGHTS: Final = Figure("model.weightsMiB", "--weights-mib", "memory that the weights take on one device")
MEMORY: Final = Figure("device.memoryMiB", "--memory-mib", "memory of one device")
LENGTH: Final = Figure("engine.maxModelLen", "--max-model-len", "longest request in tokens")
FIGURES: Final = (WEIGHTS, MEMORY, LENGTH)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a person tells of pools by name; "" is for all others."""

    given: Mapping[Figure, Mapping[str, int]]

    def of(self, figure: Figure, pool: str) -> int | None:
        """The figure for a pool, None where nobody told it."""
        told = self.given.get(figure, {})
        return told.get(pool, told.get(""))


def finish(drafts: Sequence[PoolDraft], figures: Figures) -> list[dict[str, Any]]:
    """The manifests of all drafts. PoolError with every figure that is missing or is told of no pool."""
    problems = [problem for draft in drafts for problem in _add_figures(draft, figures)]
    problems += _strangers(drafts, figures)
    if problems:
        raise PoolError(problems)
    return [_manifest(draft) for draft in drafts]


def _add_figures(draft: PoolDraft, figures: Figures) -> Iterator[Problem]:
    for figure in FIGURES:
        told = figures.of(figure, draft.name)
        if draft.get(figure.path) is None and told is not None:
            draft.put(figure.path, told)
        if draft.get(figure.path) is None:
            advice = f"is told nowhere in {draft.origin}: give {figure.option} {draft.name}=NUMBER, the {figure.what}"
            yield Problem(f"spec.{figure.path}", "", advice, f"pool {draft.name}")
    if draft.utilization is not None and draft.get(MEMORY.path):
        memory = draft.get(MEMORY.path)
        draft.put("device.floorMiB", memory - int(memory * draft.utilization))


def _strangers(drafts: Sequence[PoolDraft], figures: Figures) -> Iterator[Problem]:
    known = {draft.name for draft in drafts} | {""}
    for figure, told in figures.given.items():
        for name in sorted(told.keys() - known):
            others = ", ".join(sorted(known - {""}))
            yield Problem(figure.option, name, f"is no pool that is made; these are: {others}")


def _manifest(draft: PoolDraft) -> dict[str, Any]:
    if draft.arguments:
        draft.put("engine.extraArgs", draft.arguments)
    if draft.variables:
        draft.put("engine.env", draft.variables)
    _add_doubts(draft)
    metadata = {"name": draft.name, **({"namespace": draft.namespace} if draft.namespace else {})}
    ordered = {name: draft.spec[name] for name in _ORDER if name in draft.spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {**ordered, **draft.spec}}


_VLLM_TAG: Final = re.compile(r"(^|/)vllm[^/:]*:v?[0-9]+\.[0-9]+")
"""An image whose tag is vLLM's version, as that of other programs' images is not."""
_ORDER: Final = ("model", "role", "replicas", "engine", "device", "prefixCache", "podTemplate")


def _add_doubts(draft: PoolDraft) -> None:
    used = draft.get("engine.tensorParallelSize") or 1
    used *= draft.get("engine.dataParallelSize") or 1
    if draft.devices and draft.devices != used:
        draft.lacks("devices", f"{draft.devices} are asked for, the engine uses {used}: set its parallelism")
    image = draft.get("engine.image")
    if image and not _VLLM_TAG.search(image):
        draft.lacks("image", "its tag is no version of vLLM: set spec.engine.version to the one that is in it")


def yaml_text(drafts: Sequence[PoolDraft], manifests: Sequence[Mapping[str, Any]]) -> str:
    """All pools as YAML documents, before each the notes on its fields."""
    pairs = zip(drafts, manifests, strict=True)
    return "---\n".join(f"{_comments(draft)}{_yaml(manifest)}" for draft, manifest in pairs)


def _yaml(manifest: Mapping[str, Any]) -> str:
    return yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes a value out wherever it stands: no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whether a value is written out again."""
        del data
        return True


def _comments(draft: PoolDraft) -> str:
    lines = [_plain(f"From {draft.origin}."), *table([draft])]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def table(drafts: Iterable[PoolDraft]) -> list[str]:
    """One line for each note: what became of which field; what has no counterpart comes last."""
    order = list(Outcome)
    notes = [note for draft in drafts for note in sorted(draft.notes, key=lambda note: order.index(note.outcome))]
    wide = max((len(_plain(note.source)) for note in notes), default=0)
    return [
        f"{note.outcome:<{len(Outcome.NO_COUNTERPART)}}  {_plain(note.source):<{min(wide, 60)}}  {note.text}"
        for note in notes
    ]


def _plain(source: str) -> str:
    """A path on one line: names of fields may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in source)

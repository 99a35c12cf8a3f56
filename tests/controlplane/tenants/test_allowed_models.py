"""Names and patterns of models that a key may use."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.workers.views import ServedModel


def served(name: str, base: str, *, adapter: bool = False) -> ServedModel:
    return ServedModel(
        name=name,
        upstream=name if adapter else base,
        base=base,
        namespace="default",
        pools=(),
        declared=(),
        max_model_len=None,
        created=0,
    )


@pytest.mark.parametrize(
    ("given_", "model", "allowed"),
    [
        (("qwen",), served("qwen", "qwen"), True),
        (("qwen",), served("gpt-4o", "qwen"), True),
        (("gpt-*",), served("gpt-4o", "qwen"), True),
        (("gpt-*",), served("qwen", "qwen"), False),
        (("qwen",), served("sql", "qwen", adapter=True), False),
        (("qwen", "s*"), served("sql", "qwen", adapter=True), True),
        (("qwen",), served("qwen2", "qwen2"), False),
        (("*",), served("anything", "else"), True),
    ],
)
def test_a_model_is_allowed_by_the_name_that_was_asked_for_or_its_own(
    given_: tuple[str, ...],
    model: ServedModel,
    allowed: bool,  # noqa: FBT001 # a column of the table
) -> None:
    assert AllowedModels(given_).allow_model(model) is allowed


def test_an_alias_is_allowed_by_itself_and_naming_none_by_the_model_alone() -> None:
    aliased, qwen = AllowedModels(("gpt-*",)), served("qwen", "qwen")
    assert aliased.allow_model(qwen, "gpt-4o")
    assert not aliased.allow_model(qwen, "")
    assert not aliased.allow_model(qwen, "qwen")

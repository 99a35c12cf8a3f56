"""Answers of the admin API as pydantic models: camelCase outside; times in seconds, sizes in tokens and bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cachefleet_controlplane.routing.decision import RoutingPolicy

Ratio = Annotated[float, Field(ge=0, le=1)]


class Schema(BaseModel):
    """Camel case outside, frozen, made from objects with the same attributes."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, from_attributes=True)


class FieldProblem(Schema):
    """One field of a request that cannot be accepted."""

    field: str
    message: str


class Problem(Schema):
    """An error, as in RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: tuple[FieldProblem, ...] = ()


class Routing(Schema):
    """What decides where requests go, on this replica, until it is set again or the replica restarts."""

    model_config = ConfigDict(extra="forbid")

    policy: RoutingPolicy

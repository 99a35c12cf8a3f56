"""Examinations and canaries over real sockets: what renders as it says is certified, and what no longer does is not."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.converse.certification.certificates import Certificates
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.index_contract import RenderProfile
from tests.controlplane.gateway.converse.talk import PROFILE, Chat, Kept, introduce, keyed
from tests.controlplane.gateway.harness import MODEL, Front, front
from tests.controlplane.waiting import value

HANDLES = "{handles: true}"


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


class Lying(PlainRenderer):
    """A worker whose own renderer says something else than its plugin."""

    async def rendered(self, worker: WorkerEndpoint, endpoint: Endpoint, body: bytes) -> array[int] | None:
        found = await super().rendered(worker, endpoint, body)
        return None if found is None else array("I", [found[0] + 1, *found[1:]])


class Failing(PlainRenderer):
    """A defect of ours."""

    async def rendered(self, *_: object) -> array[int] | None:
        raise LookupError("broken")


def served(gate: Front) -> ServedModel:
    model = gate.fleet.serving(MODEL)
    assert model is not None
    return model


async def test_a21_a_profile_that_holds_is_certified_and_stays_so(kept: Kept) -> None:
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        (made,) = await kept.examiner.certify(served(gate), chats=4, seed=7)
        assert (made.certified, made.reason, made.profile) == (True, "", PROFILE.fingerprint())
        assert made.counts["chats"] == made.counts["served"] == 4
        assert made.counts["proven"] >= 1
        assert "backtracked" not in made.counts
        again = Certificates(kept.store_thread)
        await again.load()
        assert again.all() == [made]
        assert again.hold([(made.profile, made.contract)])
    assert value(gate.metrics, "continuation_certifications_total", result="certified") == 1


async def test_a21_without_boundaries_it_is_refused_and_says_why(kept: Kept) -> None:
    async with keyed(plugin=False) as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        (made,) = await kept.examiner.certify(served(gate), chats=2, seed=7)
        assert not made.certified
        assert "plugin" in made.reason


async def test_a21_a_renderer_that_differs_from_the_plugin_is_refused(kept: Kept) -> None:
    kept.make_plain = Lying
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        (made,) = await kept.examiner.certify(served(gate), chats=2, seed=7)
        assert not made.certified
        assert made.counts["keyed_otherwise"] == made.counts["turns"]


async def test_a21_a_worker_in_trouble_is_not_asked_on(kept: Kept) -> None:
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        worker.fail_next(503, 50)
        (made,) = await kept.examiner.certify(served(gate), chats=20, seed=7)
        assert (made.certified, made.counts["chats"]) == (False, 1)
        assert value(gate.metrics, "continuation_certifications_total", result="failed") == 1


async def test_a21_each_profile_is_examined_by_itself_where_handles_are_wanted(kept: Kept) -> None:
    async with keyed() as one, keyed() as two, front([one, two], turns=kept, continuation=HANDLES) as gate:
        introduce(gate, 0)
        introduce(gate, 1, profile=RenderProfile(renderer="vllm", template="sha256:bb"))
        await kept.examiner.look()
        assert [made.certified for made in kept.certificates.all()] == [True, True]
        asked = len(one.requests) + len(two.requests)
        await kept.examiner.look()
        assert len(one.requests) + len(two.requests) == asked


async def test_a21_where_no_pool_wants_handles_nobody_is_examined(kept: Kept) -> None:
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        await kept.examiner.look()
        assert not worker.requests


async def test_a3_a_share_of_turns_is_compared_with_a_plain_render(kept: Kept) -> None:
    kept.canary_ratio = 1.0
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        await kept.examiner.certify(served(gate), chats=2, seed=7)
        talk = Chat(gate)
        for text in ("one", "two", "three"):
            await talk.say(text)
        await kept.canaries.settled()
        assert value(gate.metrics, "continuation_canaries_total", result="match") == 2
        assert kept.certificates.all()[0].certified


async def test_a21_a_canary_that_differs_withdraws_the_certificate(kept: Kept) -> None:
    kept.canary_ratio = 1.0
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        await kept.examiner.certify(served(gate), chats=2, seed=7)
        kept.canaries._plain = Lying(kept.plain._upstream, kept.plain._credentials, seconds=30)
        talk = Chat(gate)
        await talk.say("one")
        assert await talk.say("two") == "artifact_hit"  # its client noticed nothing
        await kept.canaries.settled()
        assert value(gate.metrics, "continuation_canaries_total", result="mismatch") == 1
        (held,) = kept.certificates.all()
        assert (held.certified, "canary" in held.reason) == (False, True)
        stored = Certificates(kept.store_thread)
        await stored.load()
        assert stored.all() == [held]


async def test_a_canary_that_fails_says_nothing_of_the_profile(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.canary_ratio = 1.0
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        await kept.examiner.certify(served(gate), chats=2, seed=7)
        kept.canaries._plain = Failing(kept.plain._upstream, kept.plain._credentials, seconds=30)
        talk = Chat(gate)
        await talk.say("one")
        assert await talk.say("two") == "artifact_hit"
        await kept.canaries.settled()
        assert value(gate.metrics, "continuation_canaries_total", result="unknown") == 1
        assert [held.certified for held in kept.certificates.all()] == [True]
        assert "canary failed unexpectedly" in caplog.text


async def test_a3_without_a_share_nothing_is_compared(kept: Kept) -> None:
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        talk = Chat(gate)
        await talk.say("one")
        await talk.say("two")
        await kept.canaries.settled()
        assert not [seen for seen in worker.requests if seen.path.endswith("/render")]

"""Records mirror what decisions say."""

from dataclasses import asdict, fields

from cachefleet_controlplane.block_index import WorkerId
from cachefleet_controlplane.routing import CandidateScore
from cachefleet_controlplane.store.records import CandidateRecord
from tests.controlplane.store.conftest import CANDIDATE


def test_a_candidate_record_has_every_part_of_a_score() -> None:
    parts = {field.name for field in fields(CandidateScore)} - {"id"}
    assert {field.name for field in fields(CandidateRecord)} == parts
    score = CandidateScore(id=WorkerId("default/demo/demo-0#0"), **asdict(CANDIDATE))
    assert CandidateRecord.of(score) == CANDIDATE

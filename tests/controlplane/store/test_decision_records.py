"""Records mirror what decisions say."""

from msgspec.structs import asdict, replace

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateScore
from cachefleet_controlplane.store.decision_records import CandidateRecord
from tests.controlplane.store.conftest import CANDIDATE

ADDED = {"rank", "chosen", "matched_tokens"}


def test_a_candidate_record_has_every_part_of_a_score_and_says_which_was_chosen() -> None:
    parts = set(CandidateScore.__struct_fields__) - {"id"}
    assert set(CandidateRecord.__struct_fields__) == parts | ADDED
    same = {name: value for name, value in asdict(CANDIDATE).items() if name not in ADDED}
    score = CandidateScore(id=WorkerId("default/demo/demo-0#3"), **same)
    wanted = replace(CANDIDATE, rank=3, chosen=True, matched_tokens=64)
    assert CandidateRecord.of(score, block_size=16, chosen=True) == wanted

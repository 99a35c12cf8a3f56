"""Workers of which a hit needs more than full attention's blocks, or cannot be told from blocks at all."""

from __future__ import annotations

from cachefleet_controlplane.routing.decision import Knowledge, Prompt
from cachefleet_core.block_keys import BlockKey, pack_keys
from cachefleet_core.hit_rule import HitRule, window_key
from cachefleet_core.report_frames import Capability
from tests.controlplane.chains import chain, removed
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, wid
from tests.controlplane.frames import delta

KEYS = [BlockKey(key) for key in chain(1, 10)]
RULE = HitRule(windows=(2,))
PROMPT = Prompt(tokens=161, keys=pack_keys(KEYS), block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)


def window(*places: int) -> list[int]:
    return [window_key(KEYS[place], 2) for place in places]


def predicted(fleet: LiveFleet) -> int:
    return fleet.route(MODEL, PROMPT).predicted_tokens // 16


def test_a_hit_ends_where_the_window_is_held() -> None:
    fleet = fleet_of("demo-0")
    link = fleet.report(holds=[*KEYS, *window(3, 4, 8, 9)], rule=RULE)
    assert predicted(fleet) == 10
    decision = fleet.route(MODEL, PROMPT)
    assert not fleet.losses.left_window(wid("demo-0"), PROMPT.keys, decision.at)
    fleet.receive(link.connection, delta(1, removed(window(9))))
    assert predicted(fleet) == 5
    assert fleet.losses.left_window(wid("demo-0"), PROMPT.keys, decision.at)
    assert not fleet.losses.evicted(wid("demo-0"), PROMPT.keys, decision.at)
    fleet.receive(link.connection, delta(2, removed(KEYS[4:5])))
    assert predicted(fleet) == 0
    assert fleet.losses.evicted(wid("demo-0"), PROMPT.keys, decision.at)


def test_what_an_engine_denied_is_passed_over_by_the_rule_too() -> None:
    fleet = fleet_of("demo-0")
    fleet.report(holds=[*KEYS, *window(3, 4, 8, 9)], rule=RULE)
    fleet.refuted_blocks.add(wid("demo-0"), PROMPT.keys, lacking=9, held=9)
    assert predicted(fleet) == 5


def test_a_prompt_of_whole_blocks_hits_up_to_its_last_block() -> None:
    fleet = fleet_of("demo-0")
    fleet.report(holds=[*KEYS, *window(7, 8)], rule=RULE)
    whole = Prompt(tokens=160, keys=PROMPT.keys, block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)
    assert fleet.route(MODEL, whole).predicted_tokens == 9 * 16


def test_the_block_that_a_draft_model_has_computed_again_is_not_predicted_and_not_missed() -> None:
    fleet = fleet_of("demo-0")
    fleet.report(holds=KEYS, rule=HitRule(dropped=1))
    assert predicted(fleet) == len(KEYS) - 1
    assert not fleet.losses.left_window(wid("demo-0"), PROMPT.keys, 0.0)
    assert not any(one.feature == "index" for one in fleet.worker().capabilities)


def test_prompts_just_sent_count_where_this_one_goes_on_from_them() -> None:
    fleet = fleet_of("demo-0")
    fleet.report(rule=RULE)
    first = Prompt(tokens=81, keys=pack_keys(KEYS[:5]), block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)
    fork = pack_keys([*KEYS[:4], *(BlockKey(key) for key in chain(9, 4))])
    forked = Prompt(tokens=129, keys=fork, block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)
    with fleet.begin(fleet.route(MODEL, first), first):
        assert fleet.route(MODEL, PROMPT).leading[0].expected_tokens == 80
        assert fleet.route(MODEL, forked).leading[0].expected_tokens == 0


def test_operators_are_told_how_a_worker_is_indexed() -> None:
    fleet = fleet_of("demo-0")
    assert fleet.render_facts(MODEL).indexed
    fleet.report(rule=HitRule(full=False, windows=(2, 9)))
    said = Capability(feature="index", mode="windows", reason="a hit needs the last 2, 9 blocks")
    assert fleet.worker().capabilities[-1] == said
    fleet.report(epoch="e2", not_indexed="KV cache group 1 is odd")
    assert fleet.worker().not_indexed == "KV cache group 1 is odd"
    said = Capability(feature="index", mode="off", reason="not indexed: KV cache group 1 is odd")
    assert fleet.worker().capabilities[-1] == said
    assert not fleet.render_facts(MODEL).indexed

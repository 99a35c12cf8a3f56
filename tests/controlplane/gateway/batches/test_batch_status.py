"""The states of a batch: any events lead along the table, and what is over stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.batches.batch_status import OVER, BatchEvent, BatchStatus, StatusError, step

ORDER = {
    BatchStatus.VALIDATING: 0,
    BatchStatus.IN_PROGRESS: 1,
    BatchStatus.FINALIZING: 2,
    BatchStatus.CANCELLING: 2,
    **dict.fromkeys(OVER, 3),
}


@given(st.lists(st.sampled_from(BatchEvent), max_size=12))
def test_any_events_lead_on_and_never_back(events: list[BatchEvent]) -> None:
    status = BatchStatus.VALIDATING
    for event in events:
        try:
            following = step(status, event)
        except StatusError:
            following = status
        assert ORDER[following] >= ORDER[status]
        assert following is status or ORDER[following] > ORDER[status]
        assert status not in OVER or following is status
        status = following


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([BatchEvent.VALID, BatchEvent.ANSWERED, BatchEvent.WRITTEN], BatchStatus.COMPLETED),
        ([BatchEvent.INVALID], BatchStatus.FAILED),
        ([BatchEvent.VALID, BatchEvent.WRITTEN_LATE], BatchStatus.EXPIRED),
        ([BatchEvent.CANCEL, BatchEvent.CANCEL, BatchEvent.WRITTEN, BatchEvent.CANCEL], BatchStatus.CANCELLED),
        ([BatchEvent.VALID, BatchEvent.CANCEL, BatchEvent.WRITTEN], BatchStatus.CANCELLED),
    ],
)
def test_the_ways_to_each_end(events: list[BatchEvent], end: BatchStatus) -> None:
    status = BatchStatus.VALIDATING
    for event in events:
        status = step(status, event)
    assert status is end


@pytest.mark.parametrize("status", sorted({BatchStatus.FINALIZING, *OVER} - {BatchStatus.CANCELLED}))
def test_what_cannot_be_cancelled_any_more(status: BatchStatus) -> None:
    with pytest.raises(StatusError, match=status):
        step(status, BatchEvent.CANCEL)

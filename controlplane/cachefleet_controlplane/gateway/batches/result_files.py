"""Writes the files of a batch that is over: what was answered, and what was not or with an error."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.gateway.batches.batch_lines import read_line, unanswered_line
from cachefleet_controlplane.gateway.batches.batch_object import Batch
from cachefleet_controlplane.gateway.batches.batch_repository import LineState, StoredLine
from cachefleet_controlplane.gateway.batches.batch_status import BatchStatus
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.batches.input_file import InputFile
from cachefleet_controlplane.gateway.batches.line_results import LineResults
from cachefleet_controlplane.gateway.files.file_object import Purpose
from cachefleet_controlplane.gateway.files.kept_files import FileWriter, KeptFiles
from cachefleet_controlplane.store.content.tenant_cipher import SealError
from cachefleet_controlplane.wire.errors import ApiError

PAGE: Final = 16
"""Lines that are read at once: an answer may have megabytes."""
_LEFT: Final = {
    BatchStatus.IN_PROGRESS: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchStatus.CANCELLING: ("batch_cancelled", "This request was not executed: its batch was cancelled."),
    BatchStatus.FINALIZING: (
        "insufficient_quota",
        "This request was not executed: a budget of its API key or tenant is spent until after the completion window.",
    ),
}
"""Code and message of lines that were not run, by what their batch is when its files are written."""
_UNREADABLE: Final = ("answer_unreadable", "The answer of this request was stored under another fleet key.")


class ResultFiles:
    """The files of one batch; its status tells why its rest was not run."""

    def __init__(self, batch: Batch, input_file: InputFile | None, results: LineResults) -> None:
        self._batch = batch
        self._input_file = input_file
        self._results = results

    async def write(self, store: BatchStore, files: KeptFiles) -> tuple[str | None, str | None]:
        """Return the ids of both files, which nobody sees yet; None for one without lines. ApiError, StoreError."""
        writers: dict[bool, FileWriter] = {}
        lines = await self._page(store, 0)
        while lines:
            for line in lines:
                good = line.state is LineState.ANSWERED
                if good not in writers:
                    name = f"{self._batch.id}_{'output' if good else 'error'}.jsonl"
                    writers[good] = await files.begin(self._batch.tenant, name, Purpose.OUTPUT, bounded=False)
                await writers[good].write(await self._line(line))
            lines = await self._page(store, lines[-1].at.number)
        for writer in writers.values():
            await writer.flush()
        output, errors = writers.get(True), writers.get(False)
        return None if output is None else output.id, None if errors is None else errors.id

    async def _page(self, store: BatchStore, after: int) -> list[StoredLine]:
        return await store.ask("lines", lambda known: known.lines(self._batch.id, after=after, limit=PAGE))

    async def _line(self, line: StoredLine) -> bytes:
        code, message = _LEFT[self._batch.status]
        if line.result is not None:
            try:
                return self._results.open(self._batch, line.at.number, line.result)
            except SealError:
                code, message = _UNREADABLE
        custom_id = await self._custom_id(line)
        return unanswered_line(self._batch.id, line.at.number, custom_id, code=code, message=message)

    async def _custom_id(self, line: StoredLine) -> str:
        """The name that its client has for a line; "" where the input file is gone."""
        try:
            return "" if self._input_file is None else read_line(await self._input_file.line(line.at)).custom_id
        except ApiError as error:
            if error.status != 404:
                raise
            return ""

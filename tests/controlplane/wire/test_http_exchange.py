"""The server's side of an exchange: what is there at once waits for nobody, what is not is waited for in bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import (
    WHOLE_BODY,
    ClientGoneError,
    Departure,
    Message,
    Reply,
    WholeBody,
    read_body,
    while_present,
)

pytestmark = pytest.mark.usefixtures("hurried")

LONG = 30.0
SHORT = 0.01


class Client:
    """Takes an answer once it may; sends a body in pieces, and goes when it is told to."""

    def __init__(self, pieces: Sequence[bytes] = (), *, pauses: float = 0.0) -> None:
        self.may_take = asyncio.Event()
        self.goes = asyncio.Event()
        self.taken: list[Message] = []
        self.interrupted = False
        self._pieces = list(pieces)
        self._pauses = pauses

    async def send(self, message: Message) -> None:
        try:
            while not self.may_take.is_set():  # more than one wait: each goes its way through the bound
                await asyncio.sleep(0)
                await asyncio.wait_for(self.may_take.wait(), LONG)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        self.taken.append(message)

    async def receive(self) -> Message:
        if not self._pieces:
            await self.goes.wait()
            return {"type": "http.disconnect"}
        await asyncio.sleep(self._pauses)
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}


def reply(client: Client, seconds: float = LONG) -> Reply:
    return Reply(client.send, seconds=seconds)


class TestWriting:
    async def test_what_is_not_taken_at_once_is_waited_for(self) -> None:
        client = Client()
        writing = asyncio.ensure_future(reply(client).whole(200, [], b"said"))
        await asyncio.sleep(SHORT)
        assert not writing.done()
        client.may_take.set()
        await writing
        assert [message["type"] for message in client.taken] == ["http.response.start", "http.response.body"]

    async def test_who_takes_nothing_for_too_long_counts_as_gone(self) -> None:
        client = Client()
        with pytest.raises(ClientGoneError):
            await reply(client, SHORT).write(b"said")
        assert client.interrupted

    async def test_a_cancellation_reaches_what_is_waited_for(self) -> None:
        client = Client()
        writing = asyncio.ensure_future(reply(client).write(b"said"))
        await asyncio.sleep(SHORT)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert client.interrupted


class TestReading:
    @pytest.mark.parametrize("pauses", [0.0, SHORT])
    async def test_a_body_is_whole(self, pauses: float) -> None:
        client = Client([b"ab", b"", b"c"], pauses=pauses)
        assert await read_body({"headers": []}, client.receive, limit=3, seconds=LONG) == b"abc"

    async def test_one_that_is_there_at_once_is_kept_until_it_is_read(self) -> None:
        whole = WholeBody(b"abc")
        assert await read_body({"headers": [], WHOLE_BODY: whole}, Client().receive, limit=3, seconds=LONG) == b"abc"
        assert whole.take() is None
        with pytest.raises(ApiError) as caught:
            await read_body({WHOLE_BODY: WholeBody(b"abc")}, Client().receive, limit=2, seconds=LONG)
        assert caught.value.status == 413

    @pytest.mark.parametrize(("seconds", "stall"), [(LONG, SHORT), (SHORT, LONG)])
    async def test_one_that_does_not_come_is_given_up(self, seconds: float, stall: float) -> None:
        with pytest.raises(ApiError) as caught:
            await read_body({"headers": []}, Client().receive, limit=3, seconds=seconds, stall_seconds=stall)
        assert caught.value.status == 408

    async def test_one_that_drips_is_given_up(self) -> None:
        client = Client([b"a"] * 10_000, pauses=SHORT)
        with pytest.raises(ApiError) as caught:
            await read_body({"headers": []}, client.receive, limit=99_999, seconds=20 * SHORT, stall_seconds=LONG)
        assert caught.value.status == 408


class Leaving(asyncio.Event):
    """A client that goes, as its server notices it."""

    def __init__(self, departure: Departure) -> None:
        super().__init__()
        self._departure = departure

    def set(self) -> None:
        self._departure.happen()


@pytest.fixture(params=["a task waits for the server's word", "the server calls back"])
def departure(request: pytest.FixtureRequest) -> Departure | None:
    return Departure() if request.param == "the server calls back" else None


def client_of(departure: Departure | None) -> Client:
    client = Client()
    if departure is not None:
        client.goes = Leaving(departure)
    return client


class TestPresence:
    async def test_work_is_cancelled_as_its_client_goes(self, departure: Departure | None) -> None:
        client, ended = client_of(departure), asyncio.Event()

        async def work() -> None:
            client.goes.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                ended.set()

        assert not await while_present(work(), client.receive, reply(client), departure)
        assert ended.is_set()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    async def test_what_work_says_when_it_is_cancelled_matters_to_nobody(self, departure: Departure | None) -> None:
        client = client_of(departure)

        async def work() -> None:
            client.goes.set()
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                raise ValueError from None

        assert not await while_present(work(), client.receive, reply(client), departure)

    async def test_who_goes_after_the_end_has_its_answer(self, departure: Departure | None) -> None:
        client = client_of(departure)
        client.may_take.set()
        answer = reply(client)

        async def work() -> None:
            await answer.whole(200, [], b"said")
            client.goes.set()
            await asyncio.sleep(SHORT)

        assert await while_present(work(), client.receive, answer, departure)

    async def test_the_errors_of_work_pass(self, departure: Departure | None) -> None:
        async def work() -> None:
            raise ValueError

        with pytest.raises(ValueError):
            await while_present(work(), Client().receive, reply(Client()), departure)

    async def test_another_cancellation_passes(self, departure: Departure | None) -> None:
        client, began = client_of(departure), asyncio.Event()

        async def work() -> None:
            began.set()
            await asyncio.sleep(LONG)

        task = asyncio.ensure_future(while_present(work(), client.receive, reply(client), departure))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_work_is_cancelled_whose_client_has_gone_before(self) -> None:
        departure = Departure()
        departure.happen()
        assert not await while_present(asyncio.sleep(LONG), Client().receive, reply(Client()), departure)

    async def test_who_is_noticed_to_go_twice_has_gone_once(self) -> None:
        departure = Departure()

        async def work() -> None:
            departure.happen()
            departure.happen()
            await asyncio.sleep(LONG)

        assert not await while_present(work(), Client().receive, reply(Client()), departure)

    async def test_who_goes_when_all_is_done_cancels_nothing(self) -> None:
        departure = Departure()
        assert await while_present(asyncio.sleep(0), Client().receive, reply(Client()), departure)
        departure.happen()
        await asyncio.sleep(SHORT)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

"""Output of ``cachefleet up`` while a fleet starts, runs and stops: bars on a terminal, else one line per event."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR
from cachefleet_local.fleet.local_fleet import Prepared, exit_words
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec
from cachefleet_local.supervise.process_states import Life, State

_STYLES: Final = {
    State.READY: "green",
    State.STARTING: "cyan",
    State.BACKING_OFF: "yellow",
    State.FAILED: "red",
}


class Screen:
    """Shows the progress of one fleet from its start to its end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._over = False

    def starting(self, specs: Sequence[ProcessSpec]) -> None:
        """Show the processes that are about to be started."""
        if not self._console.is_terminal:
            self._line(f"to start: {', '.join(spec.name for spec in specs)}")
            return
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✔"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._bars["all"] = self._progress.add_task("fleet", total=len(specs), state="")
        for spec in specs:
            self._bars[spec.name] = self._progress.add_task(spec.name, total=1, start=False, state="waiting")
        self._progress.start()

    def changed(self, spec: ProcessSpec, life: Life) -> None:
        """Show a process's new state."""
        if self._progress:
            self._move_bar(spec, life)
        elif words := self._state_text(spec, life):
            self._line(words, style=_STYLES.get(life.state, ""))

    def show_lines(self, lines: Sequence[str]) -> None:
        """Print lines: what is awaited, or the log's end of a failed process."""
        for line in lines:
            self._line(line)

    def all_ready(self) -> None:
        """End the bars: every process is ready."""
        self._end_bars()

    @property
    def for_people(self) -> bool:
        """Whether this is a terminal, and no file that keeps what is written."""
        return self._console.is_terminal

    def note(self, text: str) -> None:
        """Show a line that ends nothing."""
        self._line(text, style="yellow")

    def ready(self, fleet: Prepared, link: str = "") -> None:
        """Show the fleet's addresses and an example request for each model; ``link`` signs in to the console."""
        self.all_ready()
        self._console.print()
        for line in _addresses(fleet, link):
            self._console.print(line, soft_wrap=True, markup=False)
        self._console.print("\nTry it:\n", style="bold")
        # Unwrapped and unstyled, so that it can be pasted.
        for pool in _one_of_each_model(fleet.pools):
            self._console.print(
                example(fleet.plan.gateway_url, pool.spec.model.name), soft_wrap=True, highlight=False, markup=False
            )
        self._console.print("\nCtrl-C stops everything.\n", style="bold")

    def stopping(self) -> None:
        """Show, once, that the fleet is being stopped."""
        self._end_bars()
        if not self._over:
            self._line("stopping")
        self._over = True

    def stopped(self) -> None:
        """Show that no process is left."""
        self._end_bars()
        self._line("everything has stopped")

    def _move_bar(self, spec: ProcessSpec, life: Life) -> None:
        progress, bar = self._progress, self._bars[spec.name]
        if progress is None:
            return
        if life.state is State.STARTING:
            progress.reset(bar, start=True, total=None)
        if life.state is State.READY:
            progress.update(bar, total=1, completed=1)
        style = _STYLES.get(life.state, "")
        progress.update(bar, state=f"[{style}]{life.state.value}" if style else life.state.value)
        done = sum(task.finished for task in progress.tasks if task.id != self._bars["all"])
        progress.update(self._bars["all"], completed=done)
        if life.state in {State.BACKING_OFF, State.FAILED} and (words := self._state_text(spec, life)):
            self._console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)

    def _end_bars(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _state_text(self, spec: ProcessSpec, life: Life) -> str:
        """The text for a process's new state, "" for none."""
        match life.state:
            case State.STARTING:
                return f"{spec.name}: {_start_words(spec, life)}"
            case State.READY:
                return f"{spec.name}: ready"
            case State.BACKING_OFF:
                pause = life.wake_at - life.since
                return f"{spec.name}: {_ended(life)}, starts again in {pause:g} s; log: {spec.log}"
            case State.FAILED:
                return f"{spec.name}: {_ended(life)}, given up after {life.starts} starts; log: {spec.log}"
        return ""

    def _line(self, text: str, style: str = "") -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(f"[{elapsed:7.1f} s] {text}", style=style, highlight=False, markup=False, soft_wrap=True)


def example(gateway_url: str, model: str) -> str:
    """A curl command for a chat request, ready for a shell."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
    return f"curl {gateway_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def _ended(life: Life) -> str:
    return "ended" if life.exit_status is None else f"ended {exit_words(life.exit_status)}"


def _start_words(spec: ProcessSpec, life: Life) -> str:
    if life.starts > 1 and life.failures:
        return f"starting again (start {life.starts})"
    if not life.was_ready:
        return "starting"
    return "waits for its engine" if spec.kind is Kind.AGENT else "does not answer"


def _addresses(fleet: Prepared, link: str) -> list[str]:
    rows = [
        ("Gateway", f"{fleet.plan.gateway_url}/v1", "OpenAI API"),
        *((("Envoy", f"{fleet.plan.envoy_url}/v1", "asks where requests go"),) if fleet.plan.envoy_url else ()),
        *(("Internal", url, _of_replica(name, fleet)) for name, url in fleet.plan.replicas.items()),
        ("Console", link or f"{fleet.plan.internal_url}/console/", _signing_in(fleet, link)),
        *(("Worker", worker.engine_url, f"{worker.name} of {worker.pool}") for worker in fleet.plan.workers),
        ("Logs", str(fleet.folder.logs), ""),
        ("Look", f"cachefleet status{_data_dir(fleet)}", "also: top, doctor, workers, decisions"),
    ]
    width = max(len(value) for label, value, _ in rows if label not in {"Logs", "Console"})
    return [f"{label:<10}{value:<{width}}  {note}".rstrip() for label, value, note in rows]


def _of_replica(name: str, fleet: Prepared) -> str:
    paths = "/admin/v1, /metrics, /healthz, /readyz"
    return f"{paths} of {name}" if len(fleet.plan.replicas) > 1 else paths


def _signing_in(fleet: Prepared, link: str) -> str:
    return "signs in once, within 10 minutes" if link else f"sign in: cachefleet console{_data_dir(fleet)}"


def _data_dir(fleet: Prepared) -> str:
    """The option that listing commands need where the data folder is not the default."""
    given = fleet.options.data_dir
    return "" if given == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(given))}"


def _one_of_each_model(pools: Sequence[PrefixCachePool]) -> list[PrefixCachePool]:
    return list({pool.spec.model.name: pool for pool in pools}.values())

"""``python -m cachefleet_local.demo``: runs the demo and prints its table. Exit statuses as of ``cachefleet``."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import EnvVar
from cachefleet_local.cli.commands.up import problem_lines, signed_in_console, until_stopped
from cachefleet_local.cli.screen import Screen
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.demo.figure import figure
from cachefleet_local.demo.policy_run import compare
from cachefleet_local.demo.report import Phase, objections, recomputed_share, table
from cachefleet_local.demo.workload import Shape, workload
from cachefleet_local.engine_forks.fork_server import fork_server
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR, write_whole
from cachefleet_local.fleet.local_fleet import LocalFleet, Options, Prepared, prepared
from cachefleet_local.fleet.pool_file import read_pools

POOL_FILE: Final = Path("examples/demo.yaml")


def demo(
    pool_file: Annotated[Path, typer.Argument(metavar="POOL.yaml", help="Pool to run.")] = POOL_FILE,
    data_dir: Annotated[Path, typer.Option(help="Folder for the demo's fleet and its result.")] = DEFAULT_DATA_DIR,
    engine_python: Annotated[
        str, typer.Option(help="Python interpreter of the engines; by default they are forks of one that has vLLM.")
    ] = "",
) -> None:
    """Send the same agents' work through two real workers, under round robin and cache-aware, and compare.

    Exit status: 0 done, 1 failed or not worth it, 2 bad input.
    """
    console = Console()
    began = time.monotonic()
    pools = [with_reset(pool) for pool in read_pools(pool_file)]
    # A folder and ports of its own: a fleet that runs on the data folder is left alone.
    options = Options(data_dir=data_dir / "demo", gateway_port=0, internal_port=0, policy="roundRobin")
    with ExitStack() as stack:
        python = engine_python or str(stack.enter_context(fork_server(_log(options.data_dir))))
        fleet = stack.enter_context(prepared(pools, replace(options, engine_python=python)))
        screen = Screen(console)
        try:
            until_stopped(_run(fleet, screen, console, data_dir / "demo.json"), screen)
        finally:
            screen.stopped()
    console.print(f"took {time.monotonic() - began:.0f} s", highlight=False)


def _log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "fork_server.log"


def with_reset(pool: PrefixCachePool) -> PrefixCachePool:
    """The pool with vLLM's development routes open: the demo uses the one that resets the prefix cache."""
    dev = EnvVar(name="VLLM_SERVER_DEV_MODE", value="1")
    engine = pool.spec.engine.model_copy(update={"env": (*pool.spec.engine.env, dev)})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": engine})})


async def _run(fleet: Prepared, screen: Screen, console: Console, result: Path) -> None:
    screen.starting(fleet.plan.processes)
    async with LocalFleet(fleet, screen.changed, screen.show_lines):
        screen.all_ready()
        await show_console(fleet, screen)
        round_robin, cache_aware = await compare(fleet, workload(Shape()), console)
    share = recomputed_share(round_robin, cache_aware)
    write_whole(result, result_text(round_robin, cache_aware))
    console.print()
    console.print(table(round_robin, cache_aware))
    console.print(f"\nCache-aware routing recomputed {share:.0%} of the tokens that round robin did.", style="bold")
    picture = result.with_suffix(".svg")
    write_whole(picture, figure([round_robin, cache_aware]))
    console.print(f"The same over time: {picture}", highlight=False, soft_wrap=True)
    console.print(f"The same as JSON: {result}\n", highlight=False, soft_wrap=True)
    if lines := objections(round_robin, cache_aware):
        raise FailureError(lines)
    problem_lines(NEXT, console)


async def show_console(fleet: Prepared, screen: Screen) -> None:
    """Print the console's address, which exists only while the fleet runs."""
    if link := await signed_in_console(fleet, screen):
        screen.show_lines([f"look on in the console while this runs (signs in once): {link}"])


NEXT: Final = [
    "This fleet is gone. What to try next (after: . .venv/bin/activate):",
    f"  cachefleet up {POOL_FILE}   the same two workers to talk to; prints a curl command, and a link to the console",
    "  cachefleet workers                 in another terminal: load and held blocks of each worker",
    "  cachefleet decisions               why each request went where it did, and what the cache did",
    "  cachefleet console                 a new link to the console: the same as pages, live",
    "",
]


def result_text(round_robin: Phase, cache_aware: Phase) -> str:
    """The result as JSON text: both phases, and the share of tokens recomputed."""
    share = recomputed_share(round_robin, cache_aware)
    phases = {"roundRobin": round_robin.as_json(), "cacheAware": cache_aware.as_json()}
    return json.dumps({**phases, "recomputed_share": round(share, 4)}, indent=2) + "\n"


def main() -> None:
    """Entry point; a failure's lines go to standard error."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command()(demo)
    try:
        app()
    except FailureError as error:
        problem_lines(error.lines, Console(stderr=True))
        sys.exit(error.status)


if __name__ == "__main__":
    main()

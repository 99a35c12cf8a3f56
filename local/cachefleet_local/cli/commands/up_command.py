"""``cachefleet up``: its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_local.cli.commands.up import up as run_up
from cachefleet_local.cli.options import DATA_DIR_HELP
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR
from cachefleet_local.fleet.local_fleet import Options

PoolFile = Annotated[Path, typer.Argument(metavar="POOL.yaml", help="Pool file; may hold several pools.")]


def up(
    pool_file: PoolFile,
    *,
    data_dir: Annotated[Path, typer.Option(help=DATA_DIR_HELP)] = DEFAULT_DATA_DIR,
    gateway_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the OpenAI API; 0 takes a free one.")
    ] = 8080,
    internal_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of admin API, reports and metrics; 0 takes a free one.")
    ] = 8081,
    replicas: Annotated[
        int, typer.Option(min=1, max=8, help="Replicas of the control plane, all behind the gateway's port.")
    ] = 1,
    envoy: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="An Envoy on this port that asks where requests go; 0 takes a free one.",
        ),
    ] = None,
    policy: Annotated[
        RoutingPolicy, typer.Option(help="How requests are routed; can be changed while it runs.")
    ] = RoutingPolicy.CACHE_AWARE,
    wait_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds in which all has to be ready, else everything is stopped again.")
    ] = 600.0,
    engine_python: Annotated[
        str, typer.Option(metavar="PATH", show_default="this one", help="Python interpreter that has vLLM.")
    ] = sys.executable,
    browse: Annotated[bool, typer.Option("--open", help="Open the console in the browser once all is ready.")] = False,
) -> None:
    """Run the pools of a file on this machine: control plane, and per replica vLLM and its agent. Ctrl-C stops all."""
    options = Options(
        data_dir=data_dir,
        gateway_port=gateway_port,
        internal_port=internal_port,
        replicas=replicas,
        envoy_port=envoy,
        policy=policy.value,
        wait_seconds=wait_timeout,
        engine_python=engine_python,
        browse=browse,
    )
    run_up(pool_file, options, Console())

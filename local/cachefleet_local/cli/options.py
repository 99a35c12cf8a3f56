"""Command-line options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from cachefleet_local.cli.admin_client import TOKEN_FILE_VARIABLE, URL_VARIABLE
from cachefleet_local.cli.listing import Output

EPILOG: Final = "Exit status: 0 done, 1 failed, 2 bad input."
DATA_DIR_HELP: Final = "Folder of the local fleet: secrets, logs, database."

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help=f"Internal address of the control plane. Default: ${URL_VARIABLE}, else the local fleet's."
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"Admin token. Default: ${TOKEN_FILE_VARIABLE}, else the local fleet's."),
]
DataDir = Annotated[Path, typer.Option(metavar="DIR", help=DATA_DIR_HELP)]
Format = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]

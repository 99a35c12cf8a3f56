"""``kubectl cachefleet``: the commands of ``cachefleet``, for the control plane in the cluster that kubectl is set to.

kubectl runs the program ``kubectl-cachefleet`` that it finds in the PATH with what follows its name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import typer

from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.contexts.cluster_access import Cluster

PROGRAM: Final = "kubectl cachefleet"
_HELP: Final = """\
The cluster, before or after a command's name:
  --kubeconfig FILE, --context NAME   as of kubectl
  -n, --namespace NAME                where the control plane is; without, it is looked for
  --service-account NAMESPACE/NAME    whose token is taken; without, kubectl's user has to be one
"""


def run(app: typer.Typer, words: Sequence[str]) -> None:
    """Run the commands of ``app``; kubectl's options may stand anywhere before ``--``."""
    cluster, rest = cluster_of(words)
    app.info.help = f"{app.info.help}\n\n\b\n{_HELP}"
    app(args=rest, prog_name=PROGRAM, obj=Where(cluster=cluster))


def cluster_of(words: Sequence[str]) -> tuple[Cluster, list[str]]:
    """Split arguments into kubectl's options and the others."""
    parser = argparse.ArgumentParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    for name in ("--kubeconfig", "--context", "--service-account"):
        parser.add_argument(name, default="")
    parser.add_argument("-n", "--namespace", default="")
    end = words.index("--") if "--" in words else len(words)
    given, rest = parser.parse_known_args(words[:end])
    return Cluster(**vars(given)), [*rest, *words[end:]]

"""guidellm at a gateway: six streamed chats, one after the other, and its report.

``python guidellm_run.py URL MODEL FOLDER TORCH``, in the environment ``guidellm``, which has no torch of its own: it
loads its data by that of the folder TORCH, where its own packages go first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

REQUESTS: Final = 6


def main(url: str, model: str, folder: str, torch: str) -> None:
    """Have its own command run, and read what it reports. AssertionError; SystemExit where the command fails."""
    sys.path.append(torch)
    from guidellm.__main__ import cli  # noqa: PLC0415 - finds torch from now on

    prompts, report = Path(folder) / "prompts.json", Path(folder) / "report.json"
    prompts.write_text(json.dumps([{"prompt": f"number {one} of some", "output_tokens_count": 4} for one in range(20)]))
    cli.main(
        [
            *("run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={url},model={model}"),
            *("--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}"),
        ],
        standalone_mode=False,
    )
    told = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    assert told["request_totals"] == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}, told
    assert told["output_token_count"]["successful"]["total_sum"] == 4 * REQUESTS, told["output_token_count"]
    assert told["time_to_first_token_ms"]["successful"]["mean"] > 0


if __name__ == "__main__":
    main(*sys.argv[1:5])

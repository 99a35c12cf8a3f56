"""Columns of the admin API's items."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cachefleet_core.engine.suspensions import suspension_words
from cachefleet_core.fleet_status.tenant_limits import BUDGET, Limit
from cachefleet_local.cli.listing import Column, Item, decoded_columns
from cachefleet_local.cli.typed_answers import pool_of, worker_of

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts


NONE: Final = (None,)
LEAST_AMOUNT: Final = Decimal("0.0001")
DEFAULT_WEIGHT: Final = 100
"""Of a tenant for which none was set."""


def worker_load(read: Callable[[Load], object]) -> Callable[[WorkerFacts], object]:
    """One figure of a worker's load; None before its first report."""
    return lambda worker: worker.load and read(worker.load)


def worker_state(worker: WorkerFacts) -> str:
    """Whether a worker is excluded, or why it serves nothing, or whether it is ready, else its phase."""
    if worker.excluded:
        return "excluded"
    if worker.ready and worker.suspended:
        return suspension_words(worker.suspended)
    return ("ready" if worker.ready else worker.phase) or "unknown"


def _limit(limit: Limit) -> Column:
    """A limit of a tenant or key, where it is set."""
    unit, period = limit.unit.removesuffix("_tokens").upper(), limit.period.replace("minute", "min").upper()
    return Column(f"{unit}/{period}", lambda item: item.get(limit.field), right=True, wide=True, usual=NONE)


def share(value: float | None) -> str | None:
    """A ratio with two digits."""
    return None if value is None else f"{value:.2f}"


def _milliseconds(item: Item) -> object:
    value = item["ttftSeconds"]
    return None if value is None else f"{1000 * value:.0f} ms"


def _age(worker: WorkerFacts) -> object:
    return None if worker.report_age_seconds is None else f"{worker.report_age_seconds:.1f} s"


def _second(time: str | None) -> object:
    return time and time[:19].replace("T", " ")


def _mib(worker: WorkerFacts) -> object:
    return None if worker.held_bytes is None else f"{worker.held_bytes / 2**20:.0f}"


def _shortfall(item: Item) -> object:
    return item["shortfall"] and f"{item['shortfall']['tokens']} {item['shortfall']['cause']}"


def _amount(value: str | None) -> str | None:
    """An amount of money to its ten-thousandth, and that it is less; none where there is nothing of it."""
    if value is None or value == "0":
        return None
    amount = Decimal(value)
    return f"{amount:.4f}" if amount >= LEAST_AMOUNT else f"<{LEAST_AMOUNT}"


def _counts(item: Item) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in item["counts"].items())


POOLS: Final = decoded_columns(
    pool_of,
    Column("POOL", lambda pool: pool.key),
    Column("MODEL", lambda pool: pool.model),
    Column("READY", lambda pool: f"{pool.workers.ready}/{pool.workers.total}", right=True),
    Column("FRESH", lambda pool: pool.workers.fresh, right=True),
    Column("EXCLUDED", lambda pool: pool.workers.excluded, right=True),
    Column("HIT RATIO", lambda pool: share(pool.hit_ratio.value), right=True),
    Column("OBJECTIVE", lambda pool: share(pool.hit_ratio.objective), right=True, wide=True),
    Column("LOOKED UP", lambda pool: pool.hit_ratio.tokens, right=True, wide=True),
    Column("GENERATION", lambda pool: pool.generation, right=True, wide=True),
    Column("CONTRACT", lambda pool: pool.contract and pool.contract.fingerprint[:19]),
)
WORKERS: Final = decoded_columns(
    worker_of,
    Column("WORKER", lambda worker: worker.name),
    Column("ID", lambda worker: worker.id, wide=True, name=True),
    Column("POOL", lambda worker: worker.pool),
    Column("STATE", worker_state),
    Column("STREAM", lambda worker: worker.stream),
    Column("RUNNING", worker_load(lambda load: load.running), right=True),
    Column("WAITING", worker_load(lambda load: load.waiting), right=True),
    Column("FREE BLOCKS", worker_load(lambda load: f"{load.blocks_free}/{load.blocks_total}"), right=True),
    Column("HELD BLOCKS", lambda worker: worker.held_blocks, right=True),
    Column("HELD MIB", _mib, right=True, wide=True),
    Column("TRUST", lambda worker: share(worker.trust), right=True, wide=True),
    Column("ENGINE", lambda worker: worker.engine_version, wide=True),
    Column("URL", lambda worker: worker.url, wide=True),
    Column("REPORT", _age, right=True, moving=True),
)
DECISIONS: Final = (
    Column("AT", lambda item: str(item["at"])[11:23]),
    Column("DECISION", lambda item: item["id"], name=True),
    Column("MODEL", lambda item: item["model"]),
    Column("TENANT", lambda item: item["tenant"], wide=True),
    Column("WORKER", lambda item: item["worker"]),
    Column("POLICY", lambda item: item["policy"]),
    Column("KNOWLEDGE", lambda item: item["knowledge"]),
    Column("PROMPT", lambda item: item["promptTokens"], right=True),
    Column("PREDICTED", lambda item: item["predictedTokens"], right=True),
    Column("CACHED", lambda item: item["cachedTokens"], right=True),
    Column("SHORTFALL", _shortfall, wide=True),
    Column("TTFT", _milliseconds, right=True),
    Column("STATUS", lambda item: item["status"], right=True),
    Column("REASON", lambda item: item["reason"]),
    Column("ENDPOINT", lambda item: item["endpoint"], wide=True),
)
TENANTS: Final = (
    Column("TENANT", lambda item: item["name"]),
    Column("PRIORITY", lambda item: item["priority"], right=True),
    Column("WEIGHT", lambda item: item["weight"], right=True, wide=True, usual=(DEFAULT_WEIGHT,)),
    Column("AT ONCE", lambda item: item["requestsAtOnce"], right=True),
    Column("TOKENS/MIN", lambda item: item["tokensPerMinute"], right=True),
    *(_limit(limit) for limit in Limit if limit not in {Limit.REQUESTS_AT_ONCE, Limit.TOKENS_PER_MINUTE}),
    Column("SALT", lambda item: item["saltVersion"], right=True),
    Column("TRUSTED", lambda item: "yes" if item["trusted"] else "no", wide=True, usual=("no",)),
    Column("STATE", lambda item: "disabled" if item["disabled"] else "enabled"),
    Column("CREATED", lambda item: _second(item["created"])),
)
ACCESS: Final = (
    Column("WITHOUT A KEY", lambda item: "served" if item["open"] else "refused"),
    Column("REASON", lambda item: item["reason"]),
)
KEYS: Final = (
    Column("ID", lambda item: item["id"], name=True),
    Column("BEGINS", lambda item: item["hint"]),
    Column("STATE", lambda item: item["state"]),
    Column("CREATED", lambda item: _second(item["created"])),
    Column("EXPIRES", lambda item: _second(item["expires"])),
    Column("REVOKED", lambda item: _second(item["revoked"])),
    Column("MODELS", lambda item: ", ".join(item.get("models", ())) or "all", wide=True, usual=("all",)),
    *map(_limit, BUDGET),
)
NEW_KEYS: Final = (
    Column("KEY", lambda item: item["key"]),
    Column("ID", lambda item: item["id"], name=True),
    Column("EXPIRES", lambda item: _second(item["expires"])),
)
USAGE: Final = (
    Column("HOUR", lambda item: str(item["hour"])[:13], name=True),
    Column("TENANT", lambda item: item["tenant"], name=True),
    Column("MODEL", lambda item: item["model"], name=True),
    Column("REQUESTS", lambda item: item["requests"], right=True),
    Column("PROMPT", lambda item: item["promptTokens"], right=True),
    Column("CACHED", lambda item: item["cachedTokens"], right=True),
    Column("COMPUTED", lambda item: item["computedTokens"], right=True),
    Column("COMPLETION", lambda item: item["completionTokens"], right=True),
    Column("CHARGED", lambda item: _amount(item.get("charged")), right=True),
    Column("SAVED", lambda item: _amount(item.get("saved")), right=True),
    Column("WASTED", lambda item: _amount(item.get("wasted")), right=True),
)
DAILY_USAGE: Final = (Column("DAY", lambda item: str(item["hour"])[:10], name=True), *USAGE[1:])
IDLE: Final = (
    Column("POOL", lambda item: item["pool"], name=True),
    Column("TENANT", lambda item: item["tenant"] or "(others)", name=True),
    Column("SHARE", lambda item: f"{item['share']:.0%}", right=True),
    Column("BLOCKS", lambda item: item["blocks"], right=True),
    Column("MIB", lambda item: item["mib"], right=True),
)
CONTRACTS: Final = (
    Column("POOL", lambda item: item["pool"], name=True),
    Column("TENANT", lambda item: item["tenant"], name=True),
    Column("SHARE", lambda item: f"{item['share']:.0%}", right=True),
    Column("IDLE BLOCKS", lambda item: item["idleBlocks"], right=True),
    Column("HITS", lambda item: share(item["hitRatio"]), right=True),
    Column("OBJECTIVE", lambda item: share(item["objective"]), right=True),
    Column("MET", lambda item: "-" if item["met"] is None else "yes" if item["met"] else "no"),
    Column("HOUR", lambda item: share(item["hour"]["met"]), right=True),
    Column("DAY", lambda item: share(item["day"]["met"]), right=True),
    Column("MONTH", lambda item: share(item["month"]["met"]), right=True),
    Column("WHY NOT", lambda item: ",".join(item["reasons"]) or "-"),
)
CERTIFICATES: Final = (
    Column("MODEL", lambda item: item["model"], name=True),
    Column("PROFILE", lambda item: item["profile"][:19], name=True),
    Column("CERTIFIED", lambda item: "yes" if item["certified"] else "no"),
    Column("AT", lambda item: _second(item["at"])),
    Column("COUNTS", _counts),
    Column("REASON", lambda item: item["reason"]),
)
FINDINGS: Final = (
    Column("SEVERITY", lambda item: item["severity"]),
    Column("SUBJECT", lambda item: item["subject"], name=True),
    Column("REASON", lambda item: item["reason"], name=True),
    Column("MESSAGE", lambda item: item["message"]),
    Column("ACTION", lambda item: item["action"], wide=True),
    Column("DOCS", lambda item: item["docs"], wide=True),
)

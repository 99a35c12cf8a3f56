"""Templates of the pages, escaped by default, and how numbers and times are written in them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

FOLDER: Final = Path(__file__).parent / "templates"
UNKNOWN: Final = "not known"
_MINUTE: Final = 60.0
_THOUSAND: Final = 1000.0


class Templates:
    """Renders templates; ``shared`` is what every template may use."""

    def __init__(self, shared: dict[str, Any], folder: Path = FOLDER) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "amount": amount,
            "count": count,
            "percent": percent,
            "seconds": seconds,
            "rate": rate,
            "day_time": day_time,
        }
        self._environment.globals |= shared

    def page(self, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A whole page."""
        return HTMLResponse(self._environment.get_template(name).render(**values), status_code=status)

    def macro(self, name: str, macro: str) -> Any:
        """A macro of a template, to be called with its arguments; gives escaped HTML."""
        return getattr(self._environment.get_template(name).module, macro)


def count(value: float | None) -> str:
    """A whole number with separators: 12,345."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def amount(value: Decimal) -> str:
    """An amount of money, to its ten-thousandth where it is small: 1,204.50, 0.0312."""
    return f"{value:,.2f}" if not value or value >= 1 else f"{value:,.4f}"


def percent(value: float | None) -> str:
    """A share from 0 to 1 in percent: 98.5 %."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    """A time span in the unit that suits it: 240 µs, 35 ms, 1.2 s, 3 min."""
    if value is None:
        return UNKNOWN
    if value >= 2 * _MINUTE:
        return f"{value / _MINUTE:.0f} min"
    if value >= 1:
        return f"{value:.1f} s"
    return f"{_THOUSAND * value:.0f} ms" if value >= 1 / _THOUSAND or not value else f"{1e6 * value:.0f} µs"


def rate(value: float | None) -> str:
    """Something a second, rounded: 12,300/s, 0.4/s."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


def day_time(value: str | float | None) -> str:
    """A time as the admin API writes it, or in Unix seconds: 2026-01-31 12:00:05 UTC."""
    if value is None:
        return UNKNOWN
    at = datetime.fromtimestamp(value, UTC) if isinstance(value, (int, float)) else datetime.fromisoformat(value)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"

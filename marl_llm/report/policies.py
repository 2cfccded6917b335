"""A line per policy: how far it is, how busy its server, how much work waits for it.

What a line may say is the table `COLUMNS`; what is not known of a policy is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

Values = Mapping[str, float | None]  # metrics by key, the latest of each


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that is said of every policy."""

    label: str
    key: str  # of the metric, with {policy} for the policy's name
    form: str = "{:.0f}"


COLUMNS = (
    Column("version", "learn/{policy}/version"),  # updates so far
    Column("behind", "store/{policy}/staleness_of_{policy}"),  # updates, what it learned from last
    Column("busy", "serve/{policy}/busy_share", "{:.0%}"),  # its server, while games were played
    Column("queue", "store/{policy}/waiting"),  # episodes ready to be learned from
    Column("success", "evaluate/{policy}/success", "{:.3f}"),  # of the seat of its name
)


def policies_of(values: Values) -> list[str]:
    """Those whose server's share is known, in the order of the metrics."""
    parts = [key.split("/") for key in values]
    return [part[1] for part in parts if (part[0], *part[2:]) == ("serve", "busy_share")]


def lines(values: Values) -> list[str]:
    """One line of plain text per policy."""
    found = []
    for policy in policies_of(values):
        items = [f"{label} {said}" for label, said in _said(values, policy).items() if said]
        found.append("  ".join([f"  {policy}:", *items]))
    return found


def table(values: Values) -> Table:
    """One row per policy; no rows while no server's share is known."""
    rows = {policy: _said(values, policy) for policy in policies_of(values)}
    shown = [c.label for c in COLUMNS if any(said[c.label] for said in rows.values())]
    grid = Table.grid(padding=(0, 2))
    for place in range(1 + len(shown)):
        grid.add_column(justify="right" if place else "left", no_wrap=True)
    grid.add_row(*(Text(label, "dim") for label in ("policy", *shown)))
    for policy, said in rows.items():
        grid.add_row(policy, *(said[label] for label in shown))
    return grid


def _said(values: Values, policy: str) -> dict[str, str]:
    """By column, "" for what is not known."""
    found = {column: values.get(column.key.format(policy=policy)) for column in COLUMNS}
    return {
        column.label: "" if value is None else column.form.format(value)
        for column, value in found.items()
    }

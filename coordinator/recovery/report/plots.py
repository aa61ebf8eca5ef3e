"""Draw the plots of a report as SVG in the colours of its page.

Placeholder colours are replaced by variables of the page's style sheet, so that an image is readable on a
light and on a dark page.
"""

import re
from collections import Counter
from collections.abc import Callable
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from coordinator.recovery.audit import AuditResult

# Placeholder colours, and the variables that replace them.
_MARKS = {
    "#010203": "var(--ink)",
    "#040506": "var(--line)",
    "#070809": "var(--blue)",
    "#0a0b0c": "var(--green)",
    "#0d0e0f": "var(--amber)",
    "#101112": "var(--red)",
    "#131415": "var(--grey)",
}
_INK, _LINE, _BLUE, _GREEN, _AMBER, _RED, _GREY = _MARKS

_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)

_STATES = (
    (0, "available", _BLUE),
    (2, "acknowledged", _GREEN),
    (3, "archiving", _GREY),
    (4, "archived", _AMBER),
)
_SEVERITIES = (("critical", _RED, "X"), ("warning", _AMBER, "o"), ("info", _GREY, "."))

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}


def make_plots(run: AuditResult) -> list[tuple[str, str, str]]:
    """Return the title, a description and the SVG of each plot."""
    return [
        (
            "State of each state partition",
            "Share-partitions of each state partition, and their state batches.",
            _draw_svg("state", lambda axes: _plot_state(axes, run)),
        ),
        (
            "Findings over log offsets",
            "Each finding at the log offset of its first record; findings without a record are not shown.",
            _draw_svg("findings", lambda axes: _plot_findings(axes, run)),
        ),
        (
            "Pruning",
            "Log offsets that can be pruned, and log offsets that the oldest snapshot prevents from pruning.",
            _draw_svg("pruning", lambda axes: _plot_pruning(axes, run)),
        ),
        (
            "Age of snapshots",
            "Share-partitions by the time from their snapshot to the newest record of the state partition.",
            _draw_svg("snapshots", lambda axes: _plot_snapshot_ages(axes, run)),
        ),
        (
            "Deliveries of records in flight",
            "Records by delivery count and delivery state.",
            _draw_svg("deliveries", lambda axes: _plot_deliveries(axes, run)),
        ),
    ]


def _draw_svg(name: str, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.6, 2.7), layout="constrained")
        draw(figure.add_subplot())
        out = StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = _METADATA.sub("", svg[svg.index("<svg") :])
    for mark, variable in _MARKS.items():
        svg = svg.replace(mark, variable)
    return svg


def _label_partition_axis(axes: Axes) -> None:
    axes.set_xlabel("state partition")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _add_legend(axes: Axes) -> None:
    """Place the legend above the plot, where it hides nothing."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2)


def _plot_state(axes: Axes, run: AuditResult) -> None:
    place = [each.state_partition for each in run.partitions]
    at = np.array(place, float)
    axes.bar(
        at - 0.2,
        [each.share_partitions for each in run.partitions],
        0.4,
        color=_BLUE,
        label="share-partitions",
    )
    axes.bar(
        at + 0.2, [each.state_batches for each in run.partitions], 0.4, color=_GREEN, label="state batches"
    )
    _add_legend(axes)
    _label_partition_axis(axes)


def _plot_findings(axes: Axes, run: AuditResult) -> None:
    rows = [row for row in run.findings.to_pylist() if row["log_offset"] >= 0]
    for severity, color, marker in _SEVERITIES:
        own = [row for row in rows if row["severity"] == severity]
        axes.scatter(
            [row["log_offset"] for row in own],
            [row["state_partition"] for row in own],
            color=color,
            marker=marker,
            label=f"{severity} ({len(own)})",
            s=36,
        )
    axes.set_xlabel("log offset")
    axes.set_ylabel("state partition")
    places = [each.state_partition for each in run.partitions]
    axes.set_ylim(min(places, default=0) - 0.5, max(places, default=0) + 0.5)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _add_legend(axes)


def _plot_pruning(axes: Axes, run: AuditResult) -> None:
    place = [each.state_partition for each in run.partitions]
    prunable = [each.prunable for each in run.partitions]
    axes.bar(place, prunable, color=_GREY, label="can be pruned")
    held = [each.unprunable for each in run.partitions]
    axes.bar(place, held, bottom=prunable, color=_BLUE, label="held")
    axes.set_ylabel("log offsets")
    _add_legend(axes)
    _label_partition_axis(axes)


def _plot_snapshot_ages(axes: Axes, run: AuditResult) -> None:
    counts = Counter[int]()
    for row in run.distributions:
        if row["name"] == "snapshot_age":
            counts[row["bin"]] += row["count"]
    if counts:
        powers = range(max(counts) + 1)
        axes.bar(powers, [counts[power] for power in powers], 0.9, color=_BLUE)
        axes.set_xticks(powers, [f"{2**power:,}" for power in powers], rotation=45)
    axes.set_xlabel("seconds, at most")
    axes.set_ylabel("share-partitions")


def _plot_deliveries(axes: Axes, run: AuditResult) -> None:
    rows = [row for row in run.distributions if row["name"] == "deliveries"]
    if rows:
        highest = max(max(row["bin"] for row in rows), 1)
        bottom = np.zeros(highest + 1)
        for number, name, color in _STATES:
            height = np.zeros(highest + 1)
            for row in rows:
                if row["delivery_state"] == number:
                    height[row["bin"]] += row["count"]
            if not height.any():
                continue
            axes.bar(np.arange(highest + 1), height, bottom=bottom, color=color, label=name)
            bottom += height
        _add_legend(axes)
    axes.set_xlabel("delivery count")
    axes.set_ylabel("records")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

"""Plot the scaling figures as SVG without a background, in colours for light and dark pages."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

_INK, _LINE = "#7b8490", "#8c959f55"
_COLORS = ("#3b82f6", "#22a06b", "#e07a1f")
_MARKERS = ("o", "s", "^")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "share-coordinator",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10,
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_TITLES = {
    "connections": "connections (1 share-partition, 4 batches)",
    "partitions": "share-partitions a request (8 connections, 4 batches)",
    "batches": "state batches of each of 10 share-partitions (8 connections)",
}
# The number of share-partitions or state batches in a request, to compute their rate per second.
_CARRIED: dict[str, Callable[[float], float]] = {
    "connections": lambda size: 1,
    "partitions": lambda size: size,
    "batches": lambda size: 10 * size,
}
_RATES = {
    "connections": "RPC/s",
    "partitions": "share-partition writes/s",
    "batches": "state batches/s",
}

Series = Sequence[dict[str, float]]


def write_plots(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write a plot for each varied quantity; return the paths."""
    written = []
    for name, sides in found["sweeps"].items():
        written.append(
            _save_plot(folder / f"{name}.svg", lambda axes, n=name, s=sides: _draw_sweep(axes, n, s), 2)
        )
    written.append(_save_plot(folder / "held.svg", lambda axes: _draw_stored_state(axes, found["held"]), 3))
    return written


def _save_plot(path: Path, plot: Callable[[Sequence[Axes]], None], panels: int) -> Path:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.3), layout="constrained")
        plot(figure.subplots(1, panels))
        return save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure without metadata that differs between runs; return the path."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    path.write_text(_METADATA.sub("", path.read_text()))
    return path


def _draw_sweep(panels: Sequence[Axes], name: str, sides: dict[str, Series]) -> None:
    rate, latency = panels
    for place, (side, rows) in enumerate(sides.items()):
        look = {"color": _COLORS[place], "marker": _MARKERS[place]}
        sizes = [row["size"] for row in rows]
        carried = [_CARRIED[name](size) for size in sizes]
        rate.plot(
            sizes,
            [row["requests_per_second"] * count for row, count in zip(rows, carried, strict=True)],
            label=side,
            **look,
        )
        latency.plot(sizes, [row["p50_us"] / 1000 for row in rows], label=side, **look)
        latency.plot(
            sizes, [row["p99_us"] / 1000 for row in rows], linestyle=":", color=look["color"], marker="."
        )
    configure_axes(rate, _RATES[name], sizes)
    configure_axes(latency, "latency, ms (line p50, dots p99)", sizes)
    rate.legend(loc="best")
    for axes in panels:
        axes.set_xlabel(_TITLES[name], fontsize=9)


def _draw_stored_state(panels: Sequence[Axes], rows: Series) -> None:
    sizes = [row["size"] for row in rows]
    shown = (
        ("RPC/s", "requests_per_second"),
        ("MB resident", "resident_mb"),
        ("s until served", "served_after_s"),
    )
    for axes, (title, figure), color in zip(panels, shown, _COLORS, strict=True):
        axes.plot(sizes, [row[figure] for row in rows], color=color, marker="o")
        configure_axes(axes, title, sizes)
        axes.set_yscale("linear")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(_format_size))
        axes.set_xlabel("share-partitions held", fontsize=9)


def configure_axes(axes: Axes, title: str, sizes: Sequence[float]) -> None:
    """Set the title of axes, and logarithmic scales with these sizes."""
    axes.set_title(title, loc="left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_format_size))
    axes.yaxis.set_major_formatter(FuncFormatter(_format_size))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _format_size(value: float, _: int) -> str:
    """Format 1500000 as 1.5M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"

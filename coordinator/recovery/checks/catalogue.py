"""Load the catalogue of the checks of an audit: id, severity, title, meaning and advice.

The file `catalogue.toml` has the texts.  A finding of a check has an effect on the verdict.
"""

import tomllib
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from typing import NamedTuple


class Severity(StrEnum):
    """The severity of a finding."""

    CRITICAL = "critical"
    """State is lost or wrong, or would be after a recovery."""
    WARNING = "warning"
    """An operator should investigate it."""
    INFO = "info"
    """For information; no action is needed."""


# Most severe first.
SEVERITIES = tuple(Severity)


class FindingEffect(StrEnum):
    """The effect of a finding on the state that a restart would load."""

    NONE = "none"
    """The state is not affected."""
    DOUBT = "doubt"
    """The state may be wrong."""
    WRONG = "wrong"
    """A record is wrong; the state before it was correct."""
    MISPLACED = "misplaced"
    """The state is correct, but in a state partition where no coordinator reads it."""
    MISSING = "missing"
    """Records are missing; another copy of the log may have them."""


class Check(NamedTuple):
    """One check. `severity` is the highest of its findings; each finding has its own."""

    id: str
    severity: Severity
    title: str
    meaning: str
    advice: str


def _load() -> Iterator[Check]:
    text = files(__package__).joinpath("catalogue.toml").read_text("utf-8")
    for entry in tomllib.loads(text)["check"]:
        yield Check(**{**entry, "severity": Severity(entry["severity"])})


CATALOGUE: dict[str, Check] = {check.id: check for check in _load()}


# The effects of critical findings. Other checks have Effect.DOUBT.
_EFFECTS = {
    **dict.fromkeys(("K1", "K2", "K3", "P2", "P4", "X2", "X3"), FindingEffect.MISSING),
    **dict.fromkeys(("R1", "R3", "R4", "K5", "K7", "K8"), FindingEffect.WRONG),
    "R8": FindingEffect.MISPLACED,
}
# Checks whose warnings have Effect.DOUBT.
_DOUBTFUL_WARNINGS = frozenset({"K2", "K4", "K6", "K7", "R7", "X3", "X5"})


def finding_effect(check_id: str, severity: Severity) -> FindingEffect:
    """Return the effect of a finding. A critical finding always has one."""
    if severity is Severity.CRITICAL:
        return _EFFECTS.get(check_id, FindingEffect.DOUBT)
    if severity is Severity.WARNING and check_id in _DOUBTFUL_WARNINGS:
        return FindingEffect.DOUBT
    return FindingEffect.NONE


def check_position(check_id: str) -> int:
    """Return the position of a check in the catalogue."""
    return list(CATALOGUE).index(check_id)

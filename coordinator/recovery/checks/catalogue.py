"""Load the catalogue of the checks of an audit: id, severity, title, meaning and advice.

The file `catalogue.toml` has the checks.  `FindingEffect` determines the verdict on a group.
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
    """One check. `severity` is the highest severity that a finding of this check can have.

    `effect` is the effect of its critical findings. Its warnings have no effect, or `DOUBT`.
    """

    id: str
    severity: Severity
    title: str
    meaning: str
    advice: str
    effect: FindingEffect = FindingEffect.DOUBT
    doubtful_warnings: bool = False


def _read_checks() -> Iterator[Check]:
    text = files(__package__).joinpath("catalogue.toml").read_text("utf-8")
    for entry in tomllib.loads(text)["check"]:
        effect = FindingEffect(entry.get("effect", FindingEffect.DOUBT))
        yield Check(**{**entry, "severity": Severity(entry["severity"]), "effect": effect})


CATALOGUE: dict[str, Check] = {check.id: check for check in _read_checks()}


def finding_effect(check_id: str, severity: Severity) -> FindingEffect:
    """Return the effect of a finding. A critical finding always has an effect."""
    check = CATALOGUE[check_id]
    if severity is Severity.CRITICAL:
        return check.effect
    is_doubtful = severity is Severity.WARNING and check.doubtful_warnings
    return FindingEffect.DOUBT if is_doubtful else FindingEffect.NONE


def check_position(check_id: str) -> int:
    """Return the position of a check in the catalogue, by which findings are ordered."""
    return list(CATALOGUE).index(check_id)

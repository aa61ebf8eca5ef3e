"""Share-group state carried from one place to another: Kafka's own coordinator, a topic of ours, a journal.

Theory of operation.  What a place holds is the fold of its records, whatever wrote them, so a migration folds
the source, looks at what the target holds already, writes one snapshot for each share-partition that is
missing there, and then reads the target anew and compares.  What is equal is left alone: a migration that was
interrupted goes on when it is run again, and one that is finished does nothing.
"""

from coordinator.migration.assembly import source_of, target_of
from coordinator.migration.errors import MigrationRefused
from coordinator.migration.fold import Folded, Held
from coordinator.migration.places import Place, parse_source, parse_target
from coordinator.migration.plan import Plan, Step
from coordinator.migration.run import Options, Report, migrate

__all__ = [
    "Folded",
    "Held",
    "MigrationRefused",
    "Options",
    "Place",
    "Plan",
    "Report",
    "Step",
    "migrate",
    "parse_source",
    "parse_target",
    "source_of",
    "target_of",
]

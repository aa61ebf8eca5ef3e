"""Share-group state carried from one place to another: Kafka's own coordinator, a topic of ours, a journal.

Theory of operation.  What a place holds is the fold of its records, whatever wrote them, so a migration folds
the source, looks at what the target holds already, writes one snapshot for each share-partition that is
missing there, and then reads the target anew and compares.  What is equal is left alone: a migration that was
interrupted goes on when it is run again, and one that is finished does nothing.
"""

from coordinator.migration.errors import MigrationRefused
from coordinator.migration.factory import make_source, make_target
from coordinator.migration.fold import ComparableState, FoldedLog
from coordinator.migration.locations import Location, parse_source, parse_target
from coordinator.migration.migrate import Options, Report, migrate
from coordinator.migration.plan import Action, MigrationPlan

__all__ = [
    "Action",
    "ComparableState",
    "FoldedLog",
    "Location",
    "MigrationPlan",
    "MigrationRefused",
    "Options",
    "Report",
    "make_source",
    "make_target",
    "migrate",
    "parse_source",
    "parse_target",
]

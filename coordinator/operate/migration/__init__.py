"""Migrate share-group state between Kafka's own coordinator, a state topic and a journal.

Theory of operation.  The state of a location is the fold of its records, regardless of the writer.  A
migration folds the source, reads the state of the target, and writes one snapshot for each share-partition
that is missing there.  Then the migration reads the target again and compares. Equal states are not written.
An interrupted migration therefore continues when it is run again, and a completed migration writes nothing.
"""

from coordinator.operate.migration.fold import ComparableState, FoldedLog, MigrationRefused
from coordinator.operate.migration.locations import (
    MigrationLocation,
    make_source,
    make_target,
    parse_source,
    parse_target,
)
from coordinator.operate.migration.migrate import MigrationOptions, MigrationReport, migrate_states
from coordinator.operate.migration.plan import MigrationAction, MigrationPlan

"""The embedded journal, the default log: `layout` has its format, `journal` its design."""

from coordinator.log.journal.disk import Disk, RealDisk, check_not_locked
from coordinator.log.journal.journal import Journal

"""Store the results of repeated audits, and find the baseline of the next one after a restart."""

from collections.abc import Iterator
from typing import Any

from coordinator.errors import ConfigError, LogError
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.folders import Folder, Location, open_folder
from coordinator.recovery.manifest import MANIFEST, read_manifest


class BaselineStore:
    """A directory with one subdirectory for each audit: the `keep` newest audits and the baseline."""

    def __init__(self, location: Location, *, keep: int) -> None:
        self._folder = open_folder(location)
        self._keep = keep

    def _list_audits(self) -> Iterator[tuple[Folder, dict[str, Any]]]:
        """Yield the finished audits, oldest first."""
        entries = [self._folder / name for name in self._folder.folder_names()]
        found = [(entry, read_manifest(entry.location)) for entry in entries if MANIFEST in entry.names()]
        yield from sorted(found, key=lambda each: each[1]["run_id"])

    def current(self, source: str, given: Baseline | None = None) -> Baseline | None:
        """Return the baseline of the next audit; `given` is used if no audit has finished yet.

        Raises ConfigError if the audits are of another source, LogError if the baseline is missing.
        """
        runs = list(self._list_audits())
        if not runs:
            return given
        _, last = runs[-1]
        if last["source"] != source:
            raise ConfigError(
                "--to", self._folder, f"a folder for {source}; it has audits of {last['source']}"
            )
        wanted = last.get("next_baseline")
        if wanted is None or (given is not None and given.run_id == wanted):
            return given
        for folder, manifest in runs:
            if manifest["run_id"] == wanted:
                return Baseline.read(folder.location)
        raise LogError(
            f"the audit {wanted} is missing in {self._folder}: it is the baseline of the next audit"
        )

    def remove_old_audits(self) -> None:
        """Remove the oldest audits, but not the baseline of the next one."""
        runs = list(self._list_audits())
        if not runs:
            return
        wanted = runs[-1][1].get("next_baseline")
        for folder, manifest in runs[: -self._keep]:
            if manifest["run_id"] != wanted:
                # A directory without a manifest is ignored, so an interrupted removal does no harm.
                folder.delete(MANIFEST)
                folder.delete_all()

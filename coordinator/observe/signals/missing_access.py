"""Report which topics and groups the cluster does not describe to this process."""

import logging
from collections.abc import Collection

from protocol.state_records import topic_id_text

_logger = logging.getLogger(__name__)


class MissingAccess:
    """The topics and groups without complete signals, and the missing ACLs. Changes are logged."""

    def __init__(self) -> None:
        self._topics = self._groups = ""

    @property
    def sentences(self) -> list[str]:
        """Return one sentence about topics and one about groups, if some are not described."""
        return [sentence for sentence in (self._topics, self._groups) if sentence]

    def set_topics(self, hidden: Collection[bytes]) -> None:
        """Set the topics of share groups that the cluster does not name.

        Brokers return the same error for a topic that was deleted.
        """
        sentence = ""
        if hidden:
            example = topic_id_text(min(hidden))
            sentence = (
                f"Lag is not known for {_format_count(hidden, 'topic')}, such as topic id {example}: "
                f"deleted, or not allowed. If they exist, add the ACL: Describe on these topics."
            )
        self._topics = _log_if_changed(self._topics, sentence)

    def set_groups(self, denied: Collection[str]) -> None:
        sentence = ""
        if denied:
            sentence = (
                f"Members are not known for {_format_count(denied, 'group')}, such as {min(denied)}: "
                f"not allowed. Add the ACL: Describe on these groups."
            )
        self._groups = _log_if_changed(self._groups, sentence)


def _format_count(names: Collection[object], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def _log_if_changed(before: str, sentence: str) -> str:
    if sentence and sentence != before:
        _logger.warning("%s", sentence)
    return sentence

"""Keep the owner of each shard for the HTTP API and the page."""

from pydantic import BaseModel, Field

from coordinator.cluster.ownership import Assignment, Replica
from coordinator.config import HostPort
from coordinator.config.admin import is_loopback
from coordinator.config.fields import WILDCARD_HOSTS


class Owner(BaseModel):
    """A coordinator that owns a shard."""

    wire: str = Field(description="The address that brokers connect to.")
    page: str | None = Field(description="The URL of its page and API, if it can be reached from elsewhere.")
    broker_id: int = Field(description="The broker on the same host, or -1.")


class OwnerDirectory:
    """The owners according to the newest assignment; no owners if no assignment is known."""

    def __init__(self) -> None:
        self._owners: tuple[Owner | None, ...] = ()
        self.generation: int | None = None
        self.assignment: Assignment | None = None

    def set_assignment(self, assignment: Assignment | None) -> None:
        """Replace the assignment; None if the owners are unknown."""
        self.assignment = assignment
        if assignment is None:
            self._owners, self.generation = (), None
            return
        owners = [make_owner(replica) for replica in assignment.replicas]
        self._owners = tuple(owners[place] if place >= 0 else None for place in assignment.owners)
        self.generation = assignment.generation

    def owner(self, state_partition: int) -> Owner | None:
        """Return the owner of a shard, or None if it has none or the owner is unknown."""
        return self._owners[state_partition] if state_partition < len(self._owners) else None


def make_owner(replica: Replica) -> Owner:
    return Owner(wire=replica.wire, page=_make_page_url(replica), broker_id=replica.broker_id)


def _make_page_url(replica: Replica) -> str | None:
    """Return the URL of a replica's page, or None if other hosts cannot reach it.

    If HTTP listens on a wildcard address, the URL has the host that brokers use. If HTTP listens on loopback,
    the URL is valid only if all coordinators run on this host.
    """
    scheme, _, address = replica.http.rpartition("://")
    if scheme not in ("", "https"):
        return None
    try:
        http = HostPort.parse(address)
        wire = HostPort.parse(replica.wire)
    except ValueError:
        return None
    if http.host in WILDCARD_HOSTS:
        http = http._replace(host=wire.host)
    elif is_loopback(http.host) and not is_loopback(wire.host):
        return None
    return f"{scheme or 'http'}://{http}"

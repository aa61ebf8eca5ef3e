"""Who has which shard, for people: where to look for what is not here."""

from pydantic import BaseModel, Field

from coordinator.config import HostPort
from coordinator.config.admin import is_loopback
from coordinator.config.fields import WILDCARD_HOSTS
from coordinator.ownership import Assignment, Replica


class Owner(BaseModel):
    """A coordinator that owns a shard."""

    wire: str = Field(description="The address that brokers are sent to.")
    page: str | None = Field(
        description="Where its page and its API are, if they can be reached from elsewhere."
    )
    broker_id: int = Field(description="The broker that it runs beside, or -1.")


class OwnerDirectory:
    """The newest map of all owners, as the ownership hung it out; empty while none is known."""

    def __init__(self) -> None:
        self._owners: tuple[Owner | None, ...] = ()
        self.generation: int | None = None
        self.map: Assignment | None = None

    def follow(self, assignment: Assignment | None) -> None:
        """Take a new map of all owners; None: it is not known who owns what."""
        self.map = assignment
        if assignment is None:
            self._owners, self.generation = (), None
            return
        owners = [make_owner(replica) for replica in assignment.replicas]
        self._owners = tuple(owners[place] if place >= 0 else None for place in assignment.owners)
        self.generation = assignment.generation

    def owner(self, state_partition: int) -> Owner | None:
        """Return the owner of a shard, None if there is none or it is not known."""
        return self._owners[state_partition] if state_partition < len(self._owners) else None


def make_owner(replica: Replica) -> Owner:
    """Show a replica as an owner."""
    return Owner(wire=replica.wire, page=_page(replica), broker_id=replica.broker_id)


def _page(replica: Replica) -> str | None:
    """Return the address of a replica's page, None if nobody else can open it.

    One that listens everywhere is found where brokers find it. One that listens to its own machine only is
    found if all coordinators are there; on another machine its address would lead back to who follows it.
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

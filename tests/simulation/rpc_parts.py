"""Map the kinds of operations to the five RPCs, and to the types of their entries for one share-partition."""

from coordinator.client import rpcs
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE

DeletePart = delete_api.PartitionData
DeleteResult = delete_api.PartitionResult
InitializePart = initialize_api.PartitionData
InitializeResult = initialize_api.PartitionResult
ReadPart = read_api.PartitionData
ReadResult = read_api.PartitionResult
SummaryPart = summary_api.PartitionData
SummaryResult = summary_api.PartitionResult
WritePart = write_api.PartitionData
WriteResult = write_api.PartitionResult

RPCS = {
    INITIALIZE: rpcs.INITIALIZE,
    READ: rpcs.READ,
    WRITE: rpcs.WRITE,
    DELETE: rpcs.DELETE,
    SUMMARY: rpcs.SUMMARY,
}

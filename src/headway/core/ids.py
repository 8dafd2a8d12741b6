"""Identifiers: strings with a kind prefix (`req-`, `rep-`, `node-`), minted at the edge only."""

from typing import NewType

RequestId = NewType("RequestId", str)
NodeId = NewType("NodeId", str)  # a replica's WorkerNode id is its replica id (`rep-...`)
TenantId = NewType("TenantId", str)
ModelId = NewType("ModelId", str)
TransferId = NewType("TransferId", str)
TimerId = NewType("TimerId", str)
GroupId = NewType("GroupId", str)
LeaseId = NewType("LeaseId", str)

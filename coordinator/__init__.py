"""The share coordinator: a standalone service that keeps the state of KIP-932 share groups."""

from coordinator.compiled_sources import select_python_sources

select_python_sources()

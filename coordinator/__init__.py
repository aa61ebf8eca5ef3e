"""The share coordinator: a standalone service that keeps the state of KIP-932 share groups."""

from coordinator.compiled_sources import import_sources_if_asked

import_sources_if_asked()

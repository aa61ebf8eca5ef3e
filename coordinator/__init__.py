"""The share coordinator: a standalone service that keeps the state of KIP-932 share groups."""

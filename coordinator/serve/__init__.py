"""Serve the share-state RPCs: listeners, the service, forwarding, queues and commits of shards."""

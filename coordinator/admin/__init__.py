"""The HTTP side for people and machines that watch: health, metrics, and the state that Kafka hides.

It only looks. Nothing here changes state, and every walk over the state lets brokers' requests run in
between.
"""

from coordinator.admin.application import create_app
from coordinator.admin.http_server import HttpServer

__all__ = ["HttpServer", "create_app"]

"""The HTTP side for people and machines that watch: health, metrics, and the state that Kafka hides.

It shows, and changes nothing unless `http.writes` lets it. Every walk over the state lets brokers' requests
run in between.
"""

from coordinator.admin.application import create_app
from coordinator.admin.cluster_info import Topics, make_user_topics
from coordinator.admin.http_server import HttpServer
from coordinator.admin.http_service import HttpService
from coordinator.admin.owner_directory import OwnerDirectory

__all__ = ["HttpServer", "HttpService", "OwnerDirectory", "Topics", "create_app", "make_user_topics"]

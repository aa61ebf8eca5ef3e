"""The HTTP server: health, metrics, the API and the web page for share-group state.

It is read-only unless `http.writes` is true. Long lists are computed in slices, between which the event loop
serves brokers.
"""

from coordinator.admin.application import create_app
from coordinator.admin.cluster_info import Topics, make_user_topics
from coordinator.admin.http_server import HttpServer
from coordinator.admin.http_service import HttpService
from coordinator.admin.owner_directory import OwnerDirectory

__all__ = ["HttpServer", "HttpService", "OwnerDirectory", "Topics", "create_app", "make_user_topics"]

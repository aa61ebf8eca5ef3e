"""The HTTP server: health, metrics, the API and the web page for share-group state.

The server is read-only unless `http.writes` is true. Long lists are computed in slices, between which the
event loop serves brokers.
"""

from coordinator.operate.admin.application import create_app
from coordinator.operate.admin.cluster_info import ClusterInfoCache, make_user_topics
from coordinator.operate.admin.coordinator_view import CoordinatorView
from coordinator.operate.admin.http_server import HttpServer, HttpService
from coordinator.operate.admin.owner_directory import OwnerDirectory

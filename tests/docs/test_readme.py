"""Run the commands of README.md as written, in the order of the page, in a fresh clone.

The clone has no virtual environment, no build products and no downloads of Kafka's jars. The commit of the
clone has the tag v9.8.7, so that the version of the installed wheel shows the origin of the version.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.deploy.test_locks import list_pins
from tests.docs.pages import ROOT, list_commands
from tests.kafka import BuiltInRig, ChildProcess, KafkaJars, free_ports, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.needs("git", "gcc", "helm"), pytest.mark.timeout(1200)]

VERSION = "9.8.7"
# Commands that run in another test, and the reason.
NOT_RUN = {
    "make test": ".ci/run",  # it would run itself
    "docker compose up --build": "tests/deploy/test_containers.py",  # its images are in registries
}
# The address that a reader replaces by that of their own cluster.
OWN_CLUSTER = "localhost:9092"

# The workflow ci.yml limits the elapsed time on an idle machine to 40 s. Here, other tests run at the same
# time, so the processor time is limited. Measured: 77 s on an idle machine, up to 85 s while other tests run.
READY_S = 400
PROCESSOR_S = 120
MEGABYTES = 150
C_MEGABYTES = 10


class ReadmeUser:
    """A user with a fresh clone, an empty environment for pip and two unused ports."""

    def __init__(self, folder: Path, jars: KafkaJars, bootstrap: str) -> None:
        self.clone, self.environment = folder / "clone", folder / "environment"
        clone_repository(self.clone)
        subprocess.run([sys.executable, "-m", "venv", str(self.environment)], check=True)
        self._bootstrap = bootstrap
        port, self._http_port = free_ports(2)
        # `make test ARGS=...` exports its variables and flags to every make below it.
        of_make = ("MAKE", "MFLAGS", "ARGS")
        inherited = {name: os.environ[name] for name in os.environ if not name.startswith(of_make)}
        self._variables = {
            **inherited,
            "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
            # Other tests may use the default ports.
            "SHARE_COORDINATOR_LISTEN": f"127.0.0.1:{port}",
            "SHARE_COORDINATOR_HTTP": f"127.0.0.1:{self._http_port}",
            # Use downloaded jars, because Maven takes a minute.
            "KAFKA_JARS_DIR": str(jars.directory.parents[1]),
        }
        self.coordinator = f"127.0.0.1:{port}"

    def run(self, command: str) -> str:
        """Run a command of the page in the clone, and return its output. A failure fails the test."""
        done = subprocess.run(
            self._shell_command(command),
            cwd=self.clone,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    @contextmanager
    def running_server(self, command: str) -> Iterator[int]:
        """Run a command, which must be ready before the deadline, until the block ends; yield its pid."""
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        process = ChildProcess(
            command,
            # `ChildProcess` adds variables to those of this process; `env -i` removes these.
            ["env", "-i", "-C", str(self.clone), *variables, *self._shell_command(command)],
            self.clone.with_name("serving.log"),
        )
        process.start()
        try:
            process.wait_ready(lambda: self.get("/readyz") is not None, seconds=READY_S)
            yield process.pid
        finally:
            process.kill()

    def get(self, path: str) -> bytes | None:
        """Return the body of a successful response, else None."""
        connection = HTTPConnection("127.0.0.1", self._http_port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()

    def _shell_command(self, command: str) -> list[str]:
        return ["bash", "-e", "-o", "pipefail", "-c", command.replace(OWN_CLUSTER, self._bootstrap)]


def clone_repository(target: Path) -> None:
    """Copy the files of the working tree that belong to the repository, and commit them with a tag."""

    def run_git(folder: Path, *arguments: str) -> str:
        settings = (f"safe.directory={folder}", "user.name=reader", "user.email=reader@localhost")
        options = (word for setting in settings for word in ("-c", setting))
        command = ["git", "-C", str(folder), *options, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for name in run_git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)
    run_git(target, "init", "--quiet")
    run_git(target, "add", "--all")
    run_git(target, "commit", "--quiet", "--message", "a release")
    run_git(target, "tag", f"v{VERSION}")


def children_processor_s(pid: int) -> float:
    """Return the processor time of the children of a process that have ended, with their children."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    # cutime and cstime of proc(5)
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def check_installation(clone: Path) -> None:
    """Check that the environment has the pinned dependencies of the serve image, and less than 150 MB."""
    (packages,) = clone.glob(".venv/lib/python*/site-packages")
    metadata = (folder.name.removesuffix(".dist-info") for folder in packages.glob("*.dist-info"))
    installed = {canonicalize_name(name.rpartition("-")[0]) for name in metadata}
    assert installed <= {*(name for name, _ in list_pins("serve")), "pip", "setuptools", "share-coordinator"}
    files = (path for path in (clone / ".venv").rglob("*") if path.is_file() and not path.is_symlink())
    assert sum(path.stat().st_size for path in files) < MEGABYTES * 1_000_000
    assert list(clone.glob("coordinator/fastpath/_compiled.*.so"))
    assert sum(path.stat().st_size for path in clone.glob("coordinator/**/*.c")) < C_MEGABYTES * 1_000_000


def check_release(clone: Path) -> None:
    """Check that dist/ has an sdist, a wheel with compiled modules, an SBOM, a chart and their checksums."""
    dist = clone / "dist"
    sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text("utf-8").splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dist.iterdir()
        if path.name != "SHA256SUMS"
    }
    (wheel,) = dist.glob(f"share_coordinator-{VERSION}-cp*-manylinux_*.whl")
    archives = {f"share_coordinator-{VERSION}.tar.gz", f"share-coordinator-{VERSION}.tgz", wheel.name}
    assert sums.keys() == {"sbom.cdx.json", *archives}
    modules = {name.split(".")[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
    assert modules == {
        *(f"coordinator/fastpath/{name}" for name in ("_compiled", "histogram")),
        "coordinator/fastpath/operation_queue",
        *(f"coordinator/serve/runtime/{name}" for name in ("commit_scheduler", "shard_queue")),
        *(f"coordinator/serve/server/{name}" for name in ("connection", "request_memory")),
        "coordinator/log/journal/pending",
        *(f"protocol/{name}" for name in ("field_codecs", "struct_codecs")),
    }
    with tarfile.open(dist / f"share_coordinator-{VERSION}.tar.gz") as sdist:
        assert f"share_coordinator-{VERSION}/setup.py" in sdist.getnames()
    sbom = json.loads((dist / "sbom.cdx.json").read_text("utf-8"))
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "share-coordinator")
    components = {(canonicalize_name(each["name"]), each["version"]) for each in sbom["components"]}
    assert components == set(list_pins("serve"))


def check_wheel(reader: ReadmeUser) -> None:
    """Check that the installed wheel serves, answers a share-partition leader, and observes."""
    with reader.running_server(f"share-coordinator serve --data-dir {reader.environment}/data"):
        reader.run(f"share-coordinator demo --bootstrap {reader.coordinator}")
    with reader.running_server(f"share-coordinator observe --bootstrap-servers {OWN_CLUSTER}"):
        check_observer(reader)


def check_observer(reader: ReadmeUser) -> None:
    """Check that the observer shows the share group of the cluster."""
    shown = wait_until(
        lambda: reader.get("/api/v1/share-partitions?group=readers"), seconds=60, what="the group is shown"
    )
    assert b"readme" in shown


@pytest.fixture
def reader(built_in: BuiltInRig, newest_jars: KafkaJars, tmp_path: Path) -> ReadmeUser:
    """A reader with a cluster in which the share group `readers` has consumed a record."""
    client = built_in.client
    client.create_topic("readme")
    client.set_group_config("readers", {"share.auto.offset.reset": "earliest"})
    client.produce("readme", 1)
    consumer = client.share_consumer("readers", "readme")
    records = wait_until(consumer.poll, seconds=120, what="records are delivered")
    consumer.acknowledge(["ACCEPT"] * len(records))
    consumer.close()
    return ReadmeUser(tmp_path, newest_jars, built_in.broker.bootstrap)


def test_commands_of_readme_succeed_in_order(reader: ReadmeUser) -> None:
    page = [each.text for each in list_commands() if each.page == "README.md" and not each.is_mention]
    checks: dict[str, Callable[[str], object]] = {
        "make demo": lambda output: "Only the released records are delivered again" in output,
        "make release": lambda _: check_release(reader.clone) is None,
        "share-coordinator --version": re.compile(rf"share-coordinator {VERSION} .*path: compiled").match,
    }
    for command in page:
        if command.startswith("make observe "):
            with reader.running_server(command) as pid:
                check_observer(reader)
                assert 0 < children_processor_s(pid) < PROCESSOR_S
            check_installation(reader.clone)
        elif command == "make run":
            with reader.running_server(command):
                assert reader.get("/") is not None
        elif command not in NOT_RUN:
            output = reader.run(command)
            assert checks.pop(command, lambda _: True)(output), output
    assert not checks, "the page has these commands no longer"
    check_wheel(reader)


def test_commands_within_sentences_of_readme_are_in_its_blocks() -> None:
    all_commands = [each for each in list_commands() if each.page == "README.md"]
    blocks = [each.text for each in all_commands if not each.is_mention]
    mentions = [each.text for each in all_commands if each.is_mention]
    assert [text for text in mentions if not any(block.startswith(text) for block in blocks)] == []


@pytest.mark.parametrize(("command", "where"), NOT_RUN.items())
def test_command_that_is_not_run_is_in_readme_and_its_test_exists(command: str, where: str) -> None:
    assert command in [each.text for each in list_commands() if each.page == "README.md"]
    assert (ROOT / where).exists()


def test_readme_has_at_most_600_words() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 600

"""A Docker engine of our own for tests, whose images come from no registry.

The one thing to know: the engine is the first process of a PID namespace and a mount namespace, and its data
lie in memory. When it is killed, containers, mounts and images are gone with it, whatever ends the test run.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from tests.kafka.processes import ChildProcess
from tests.kafka.toolchain import program_path

NEEDED = ("docker", "dockerd", "mmdebstrap", "root")

# Before dockerd starts: its data in memory, and no sight of an engine that runs here already, whose
# containerd it would take for its own.
_OWN_MOUNTS = """
mount -t tmpfs -o mode=755 engine "$1"
test ! -d /run/containerd || mount -t tmpfs engine /run/containerd
shift
exec "$@"
"""
# As deploy/kubernetes and docker-compose.yml confine containers.
CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")


class Engine:
    """A dockerd with its own data, and the client that talks to it."""

    def __init__(self, directory: Path) -> None:
        """Prepare it below `directory`, whose path must be short: a socket lies in it. Nothing is started."""
        self._directory = directory
        data = directory / "data"
        data.mkdir()
        socket = f"unix://{directory}/docker.sock"
        self._environment = {
            "DOCKER_HOST": socket,
            "DOCKER_CONFIG": str(directory / "client"),
            # The builder that every engine has.
            "DOCKER_BUILDKIT": "0",
        }
        self.process = ChildProcess(
            "Docker",
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-euc", _OWN_MOUNTS, "sh", str(data)),
                _program("dockerd"),
                *("--data-root", str(data), "--exec-root", str(directory / "exec")),
                *("--host", socket, "--pidfile", str(directory / "pid")),
                # Nothing that is the whole machine's: no rules of a firewall, no forwarding.
                *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
            ],
            directory / "dockerd.log",
            # It starts programs by name that ordinary users do not find.
            environment={"PATH": f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"},
        )

    def start(self) -> None:
        """Start and wait until it answers."""
        self.process.start()
        self.process.wait_ready(lambda: self._run(["version"]).returncode == 0, seconds=120)

    def stop(self) -> None:
        """End it and all its containers, and leave nothing behind."""
        try:
            if self.process.running:
                # In good order, so that groups and networks of the kernel go, too.
                containers = self._run(["ps", "--all", "--quiet"]).stdout.split()
                if containers:
                    self._run(["rm", "--force", "--volumes", *containers])
                self._run(["network", "prune", "--force"])
        finally:
            self.process.kill()

    def docker(self, *arguments: str, seconds: float = 300) -> str:
        """Run a command of the client and return what it printed. An error fails the test."""
        done = self._run(arguments, seconds=seconds)
        assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def client(self, *arguments: str) -> list[str]:
        """Return the command that runs the client; it needs `environment`."""
        return [_program("docker"), *arguments]

    def build(self, image: str, recipe: str, files: Mapping[str, Path], leave_out: Sequence[str] = ()) -> str:
        """Build an image by a Dockerfile's text and return its name; there is no network in it.

        `files` are files and folders of this machine by where they lie in the context, below `rootfs`; those
        with a name of `leave_out` are left out.
        """

        def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if Path(entry.name).name in leave_out else entry

        context = self._directory / "context.tar"
        with tarfile.open(context, "w") as archive:
            said = tarfile.TarInfo("Dockerfile")
            said.size = len(recipe.encode())
            archive.addfile(said, BytesIO(recipe.encode()))
            for there, here in files.items():
                archive.add(here, f"rootfs/{there.lstrip('/')}", filter=wanted)
        with context.open("rb") as opened:
            done = self._run(["build", "--tag", image, "-"], seconds=300, stdin=opened.fileno())
        context.unlink()
        assert done.returncode == 0, f"docker build {image}:\n{done.stdout}{done.stderr}"
        return image

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it must find in its environment."""
        return {**os.environ, **self._environment}

    def _run(
        self, arguments: Sequence[str], *, seconds: float = 300, stdin: int = subprocess.DEVNULL
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.client(*arguments),
            stdin=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=seconds,
            check=False,
        )


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Start an engine without any image; at the end nothing of it is left."""
    # Not pytest's folder: its path is long, and it is kept.
    directory = Path(tempfile.mkdtemp(prefix="engine-"))
    engine = Engine(directory)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(directory)


def options(flag: str, values: Mapping[str, str]) -> list[str]:
    """Return `flag NAME=VALUE` for each of `values`."""
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]


def _program(name: str) -> str:
    path = program_path(name)
    assert path is not None, f"{name} is not installed"
    return path

"""Run a private Docker engine for tests, whose images do not come from a registry.

The engine is the first process of a PID namespace and a mount namespace, and its data directory is in memory.
When the engine is killed, its containers, mounts and images are removed, even if the test process is killed.
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

# Setup before dockerd starts: a data directory in memory. The setup also hides /run/containerd, because
# dockerd would use the containerd of another engine on the machine.
_OWN_MOUNTS = """
mount -t tmpfs -o mode=755 engine "$1"
test ! -d /run/containerd || mount -t tmpfs engine /run/containerd
shift
exec "$@"
"""
# The same restrictions as in deploy/kubernetes and docker-compose.yml.
CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")


class DockerEngine:
    """A dockerd with its own data directory, and its client."""

    def __init__(self, directory: Path) -> None:
        """Prepare an engine below `directory`, whose path must be short enough for a socket.

        Nothing is started.
        """
        self._directory = directory
        data = directory / "data"
        data.mkdir()
        socket = f"unix://{directory}/docker.sock"
        self._environment = {
            "DOCKER_HOST": socket,
            "DOCKER_CONFIG": str(directory / "client"),
            # Use the legacy builder, which every engine has.
            "DOCKER_BUILDKIT": "0",
        }
        self.process = ChildProcess(
            "Docker",
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-euc", _OWN_MOUNTS, "sh", str(data)),
                _find_program("dockerd"),
                *("--data-root", str(data), "--exec-root", str(directory / "exec")),
                *("--host", socket, "--pidfile", str(directory / "pid")),
                # Do not change the machine's network: no firewall rules, no forwarding.
                *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
            ],
            directory / "dockerd.log",
            # dockerd starts programs by name that are not in the PATH of ordinary users.
            environment={"PATH": f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"},
        )

    def start(self) -> None:
        """Start the engine and wait until it answers."""
        self.process.start()
        self.process.wait_ready(lambda: self._run_client(["version"]).returncode == 0, seconds=120)

    def stop(self) -> None:
        """Stop the engine and all its containers, and remove their remains."""
        try:
            if self.process.running:
                # Remove containers before the engine ends, so that their cgroups and networks are removed
                # too.
                containers = self._run_client(["ps", "--all", "--quiet"]).stdout.split()
                if containers:
                    self._run_client(["rm", "--force", "--volumes", *containers])
                self._run_client(["network", "prune", "--force"])
        finally:
            self.process.kill()

    def docker(self, *arguments: str, seconds: float = 300) -> str:
        """Run a command of the client and return its output. An error fails the test."""
        done = self._run_client(arguments, seconds=seconds)
        assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def client(self, *arguments: str) -> list[str]:
        """Return the command that runs the client; it needs `environment`."""
        return [_find_program("docker"), *arguments]

    def build(self, image: str, recipe: str, files: Mapping[str, Path], leave_out: Sequence[str] = ()) -> str:
        """Build an image from the text of a Dockerfile, without network, and return its name.

        `files` maps paths in the context, below `rootfs`, to local files and directories. Entries with a name
        in `leave_out` are skipped.
        """

        def exclude_file(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if Path(entry.name).name in leave_out else entry

        context = self._directory / "context.tar"
        with tarfile.open(context, "w") as archive:
            said = tarfile.TarInfo("Dockerfile")
            said.size = len(recipe.encode())
            archive.addfile(said, BytesIO(recipe.encode()))
            for there, here in files.items():
                archive.add(here, f"rootfs/{there.lstrip('/')}", filter=exclude_file)
        with context.open("rb") as opened:
            done = self._run_client(["build", "--tag", image, "-"], seconds=300, stdin=opened.fileno())
        context.unlink()
        assert done.returncode == 0, f"docker build {image}:\n{done.stdout}{done.stderr}"
        return image

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a client of this engine."""
        return {**os.environ, **self._environment}

    def _run_client(
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
def running_engine() -> Iterator[DockerEngine]:
    """Start an engine without images; remove it at the end."""
    # Use a separate directory: the path of pytest's directory is too long for a socket.
    directory = Path(tempfile.mkdtemp(prefix="engine-"))
    engine = DockerEngine(directory)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(directory)


def repeat_option(flag: str, values: Mapping[str, str]) -> list[str]:
    """Return `flag NAME=VALUE` for each of `values`."""
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]


def _find_program(name: str) -> str:
    path = program_path(name)
    assert path is not None, f"{name} is not installed"
    return path

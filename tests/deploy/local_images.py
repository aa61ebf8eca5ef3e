"""Build stand-ins for images of a registry from Debian packages and from programs on this machine.

Each stand-in has the user, the directories, the programs and the entry point of the original image. Therefore
a stand-in accepts the same configuration as the original image.
"""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deploy.compose import MAIN_CLASSES
from tests.deploy.engine import DockerEngine
from tests.kafka.jars import REPOSITORY, KafkaJars
from tests.kafka.toolchain import program_path

PYTHON = "stand-in/python"
# The build arguments for which `make release-images` uses values from git.
VERSION, REVISION = "9.8.7", "0" * 40

# The packages include HAProxy and a library for Java, so that one base image suffices for all stand-ins.
_PACKAGES = ("ca-certificates", "haproxy", "python3-venv", "zlib1g")
# Build dependencies of the compiled module. The original Python images contain the headers of Python.
_BUILD_PACKAGES = "gcc libc6-dev python3-dev"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Names of pip settings that define how to reach a package index.
_REACHING_AN_INDEX = ("cert", "client-cert", "default-timeout", "extra-index-url", "index-url", "proxy",
                      "retries", "timeout", "trusted-host")  # fmt: skip
# The build runs in its own namespaces and ends with its parent process.
_CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
_MAKE_BASE = 'mount -t tmpfs -o mode=755 base "$TMPDIR"; "${@:2}" | "$0" import - "$1"'
# Directories of a JDK that a JVM does not need at run time.
_UNUSED_OF_JAVA = ("docs", "include", "jmods", "legal", "man", "src.zip")


def make_python_image(engine: DockerEngine) -> None:
    """Make a minimal Debian image with Python as a stand-in for python:3.x-slim."""
    with tempfile.TemporaryDirectory(prefix="base-") as scratch:
        Path(scratch).chmod(0o755)
        memory = Path(scratch) / "memory"
        memory.mkdir()
        settings = Path(scratch) / "pip.conf"
        settings.write_text(_make_pip_config())
        copied = [f"upload {settings} /etc/pip.conf"]
        if Path(_CERTIFICATES).exists():
            copied.append(f"upload {_CERTIFICATES} {_CERTIFICATES}")
        program = program_path("mmdebstrap")
        assert program is not None, "mmdebstrap is not installed"
        bootstrap = [
            *(program, "--quiet", "--variant=apt", f"--include={','.join(_PACKAGES)}"),
            *("--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*"),
            '--aptopt=Acquire::Retries "5"',
            *(*(f"--customize-hook={hook}" for hook in copied), _debian_codename(), "-"),
        ]
        done = subprocess.run(
            [
                *_CONTAINED,
                *("bash", "-euo", "pipefail", "-c", _MAKE_BASE),
                *(engine.client()[0], PYTHON, *bootstrap),
            ],
            capture_output=True,
            text=True,
            env={**engine.environment, "TMPDIR": str(memory)},
            timeout=1200,
            check=False,
        )
    assert done.returncode == 0, f"mmdebstrap could not make the base image:\n{done.stdout}{done.stderr}"


def build_project_image(engine: DockerEngine, target: str) -> str:
    """Build a target of the project's Dockerfile on the stand-in base image, and return the image name."""
    image = f"share-coordinator-{target}"
    engine.docker(
        *("build", "--network", "host", "--target", target, "--tag", image),
        *("--build-arg", f"PYTHON_IMAGE={PYTHON}", "--build-arg", f"BUILD_PACKAGES={_BUILD_PACKAGES}"),
        *("--build-arg", f"VERSION={VERSION}", "--build-arg", f"REVISION={REVISION}"),
        str(REPOSITORY),
        seconds=900,
    )
    return image


def make_haproxy_image(engine: DockerEngine) -> str:
    """Make a stand-in for haproxy:3.2, and return its name."""
    return engine.build("stand-in/haproxy", f"FROM {PYTHON}\nUSER 99:99\nSTOPSIGNAL SIGUSR1\n", {})


def make_kafka_image(engine: DockerEngine, jars: KafkaJars, scratch: Path) -> str:
    """Build an image that replaces apache/kafka. Return its name.

    Its scripts start the Kafka of these jars, and have the names of the scripts in apache/kafka.
    """
    java = Path(program_path("java") or "").resolve()
    home = java.parents[1]
    scripts = scratch / "bin"
    scripts.mkdir()
    for name, main_class in MAIN_CLASSES.items():
        script = scripts / name
        script.write_text(
            f"#!/bin/bash\nexec {java} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 $KAFKA_HEAP_OPTS "
            f'$KAFKA_LOG4J_OPTS -cp "/opt/kafka/libs/*" {main_class} "$@"\n'
        )
        script.chmod(0o755)
    recipe = (
        f"FROM {PYTHON}\nCOPY rootfs /\nRUN install -d -o 1000 -g 1000 /var/lib/kafka /var/lib/kafka/data\n"
        "USER 1000:1000\n"
    )
    # Debian's Java has its configuration in /etc.
    folders = [home, *Path("/etc").glob("java-*")]
    files = {
        "/opt/kafka/bin": scripts,
        "/opt/kafka/libs": jars.directory,
        **{str(folder): folder for folder in folders},
    }
    return engine.build("stand-in/kafka", recipe, files, leave_out=_UNUSED_OF_JAVA)


def make_prometheus_image(engine: DockerEngine) -> str:
    """Make a stand-in for prom/prometheus, and return its name."""
    program = Path(program_path("prometheus") or "").resolve()
    recipe = (
        f"FROM {PYTHON}\nCOPY rootfs /\nRUN install -d -o 65534 -g 65534 /prometheus\nUSER 65534\n"
        'WORKDIR /prometheus\nVOLUME /prometheus\nENTRYPOINT ["/usr/bin/prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]\n'
    )
    return engine.build("stand-in/prometheus", recipe, {"/usr/bin/prometheus": program})


def _make_pip_config() -> str:
    """Return a pip.conf with this machine's settings for the package index.

    The settings may come from pip's configuration files or from the environment.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = ast.literal_eval(value)
    lines = [f"{name} = {value}" for name, value in found.items() if name in _REACHING_AN_INDEX]
    return "\n".join(["[global]", *lines, ""])


def _debian_codename() -> str:
    """Return the codename of this machine's Debian, so that its programs find matching libraries in the
    image.
    """
    release = Path("/etc/os-release").read_text("utf-8")
    names = [line.partition("=")[2] for line in release.splitlines() if line.startswith("VERSION_CODENAME=")]
    return names[0].strip('"') if names else "stable"

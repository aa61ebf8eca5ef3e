"""Kafka's jars, fetched with Maven once per release and kept in a directory of this repository.

A release directory appears under its final name only when it is complete, and one process at a time fills
it: whoever finds it can use it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.kafka.toolchain import program_path

RELEASES = ("4.1.1", "4.3.1", "4.4.0")

REPOSITORY = Path(__file__).resolve().parents[2]
_JAVA_SOURCES = Path(__file__).with_name("java")
_CLASSES, _ARCHIVE = "driver.jar", "kafka.jsa"
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
# Maven has no command-line tools of 4.4.0; those of 4.3.1 work with it.
_TOOLS_RELEASE = {"4.4.0": "4.3.1"}
# What the command-line tools bring along for Kafka Connect: half of the download, needed by no test.
_UNUSED = ("connect-runtime", "connect-json", "connect-api", "connect-transforms")


class Jvm(NamedTuple):
    """How a JVM is to run; with `archived_classes` it finds what it loads ready made (`_archived`)."""

    heap_mb: int
    options: tuple[str, ...]
    archived_classes: bool = False


# Short-lived processes on few cores: the quick compiler and the smallest garbage collector start fastest.
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
QUICK_JVM = Jvm(256, _QUICK, archived_classes=True)
QUICK_BROKER_JVM = Jvm(512, _QUICK, archived_classes=True)

# What is measured runs as Kafka's own scripts start it: kafka-run-class.sh has these options, the heap is
# that of kafka-server-start.sh and of kafka-share-consumer-perf.sh.
_AS_SHIPPED = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
# A JVM's own warnings go to standard output otherwise, in the middle of what its program says.
_WARNINGS_ASIDE = ("-Xlog:disable", "-Xlog:all=warning:stderr")
SHIPPED_BROKER_JVM = Jvm(1024, ("-Xms1024m", *_AS_SHIPPED))
SHIPPED_CLIENT_JVM = Jvm(512, _AS_SHIPPED)


@dataclass(frozen=True)
class KafkaJars:
    """One release of Kafka, ready to run."""

    release: str
    directory: Path

    def java(self, main_class: str, *arguments: str, jvm: Jvm = QUICK_JVM) -> list[str]:
        """Return the command that runs `main_class`, of Kafka or of `tests/kafka/java`."""
        class_path = self._class_path()
        return [
            _program("java"),
            f"-Xmx{jvm.heap_mb}m",
            *jvm.options,
            *_WARNINGS_ASIDE,
            *(self._archived(class_path) if jvm.archived_classes else ()),
            f"-Dlog4j2.configurationFile={_LOG_CONFIG}",
            "-cp",
            class_path,
            main_class,
            *arguments,
        ]

    def run(
        self, main_class: str, *arguments: str, seconds: float = 180, jvm: Jvm = QUICK_JVM
    ) -> "subprocess.CompletedProcess[str]":
        """Run `main_class` to its end; its exit code is the caller's to check."""
        return subprocess.run(
            self.java(main_class, *arguments, jvm=jvm),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def _class_path(self) -> str:
        # In an order of ours: an archive of classes is good for one order only.
        return os.pathsep.join(map(str, [self._classes(), *sorted(self.directory.glob("*.jar"))]))

    def _classes(self) -> Path:
        """Return the jar of `tests/kafka/java`; it is made again when a source changes."""
        sources = sorted(_JAVA_SOURCES.glob("*.java"))
        made = self.directory.parent / f"driver-{_digest(*(source.read_bytes() for source in sources))}"
        if not made.exists():
            with _filled_once(made) as empty, tempfile.TemporaryDirectory() as scratch:
                if empty:
                    compiler = [_program("javac"), "-cp", f"{self.directory}/*", "-d", scratch]
                    _run([*compiler, *map(str, sources)])
                    _run([_program("jar"), "--create", "--file", str(empty / _CLASSES), "-C", scratch, "."])
        return made / _CLASSES

    def _archived(self, class_path: str) -> list[str]:
        """Return the option that has a JVM take its classes from an archive (JEP 350), which is made first.

        A broker needs two thirds as much of a processor to start then, and tests start hundreds. The archive
        is what a broker leaves that starts and ends; it is good for one JVM and one class path, and only as
        long as neither has changed. A JVM that leaves none goes without.
        """
        java = Path(_program("java")).resolve()
        ages = [str(file.stat().st_mtime_ns) for file in (java, *map(Path, class_path.split(os.pathsep)))]
        wanted = [str(java), class_path, *ages, *QUICK_BROKER_JVM.options]
        made = self.directory.parent / f"archive-{_digest(*(word.encode() for word in wanted))}"
        if not made.exists():
            with _filled_once(made) as empty:
                if empty:
                    _leave_archive(self, empty / _ARCHIVE)
        archive = made / _ARCHIVE
        return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _leave_archive(jars: KafkaJars, archive: Path) -> None:
    """Run a broker from its start to its end for the archive of classes that it leaves."""
    # Here and not above: that module needs this one.
    from tests.kafka.broker import Broker

    options = (*QUICK_BROKER_JVM.options, f"-XX:ArchiveClassesAtExit={archive}")
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(jars, Path(scratch), jvm=Jvm(QUICK_BROKER_JVM.heap_mb, options))
        broker.start()
        broker.stop()


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def fetch_jars(release: str) -> KafkaJars:
    """Return the jars of `release`, fetched first if they are not here.

    They are kept in `.kafka/RELEASE` of the repository, or in KAFKA_JARS_DIR/RELEASE.
    """
    cache = Path(os.environ.get("KAFKA_JARS_DIR") or REPOSITORY / ".kafka")
    jars = cache.resolve() / release / "jars"
    if not jars.exists():
        jars.parent.mkdir(parents=True, exist_ok=True)
        with _filled_once(jars) as empty:
            if empty:
                _run_maven(release, empty)
    return KafkaJars(release, jars)


def _run_maven(release: str, output: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pom.xml").write_text(_pom(release))
        _run(
            [_program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={output}"],
            directory=scratch,
        )


def _pom(release: str) -> str:
    tools = _TOOLS_RELEASE.get(release, release)
    wanted = [
        _dependency("org.apache.kafka", "kafka_2.13", release, without=("kafka-tools-api",)),
        _dependency("org.apache.kafka", "kafka-tools-api", tools),
        _dependency("org.apache.kafka", "kafka-tools", tools, without=_UNUSED),
        _dependency("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
        _dependency("org.apache.logging.log4j", "log4j-core", "2.24.3"),
    ]
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>kafka-jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{''.join(wanted)}</dependencies></project>"
    )


def _dependency(group: str, artifact: str, version: str, without: tuple[str, ...] = ()) -> str:
    exclusions = "".join(
        f"<exclusion><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId></exclusion>"
        for name in without
    )
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><exclusions>{exclusions}</exclusions></dependency>"
    )


@contextmanager
def _filled_once(directory: Path) -> Iterator[Path | None]:
    """Yield a directory to fill, which becomes `directory` at the end; or None if that exists by now.

    Holds a lock meanwhile, against another process that wants to fill the same one.
    """
    with directory.with_name(directory.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            yield None
            return
        unfinished = directory.with_name(directory.name + ".unfinished")
        # What an earlier run left when it was killed.
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(directory)


def _program(name: str) -> str:
    path = program_path(name)
    assert path is not None, f"{name} is not installed"
    return path


def _run(command: list[str], directory: str | None = None) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"

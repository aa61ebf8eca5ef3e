"""Fetch Kafka's jars with Maven, once per release, into a cache directory of this repository.

Only one process at a time fills the directory of a release. The directory gets its final name when it is
complete, so an existing directory is always complete.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.kafka.toolchain import program_path

RELEASES = ("4.1.1", "4.3.1", "4.4.0")

REPOSITORY = Path(__file__).resolve().parents[2]
_JAVA_SOURCES = Path(__file__).with_name("java")
_CLASSES, _ARCHIVE = "driver.jar", "classes.jsa"
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
# Maven Central has no command-line tools of 4.4.0; the tools of 4.3.1 work with 4.4.0 brokers.
_TOOLS_RELEASE = {"4.4.0": "4.3.1"}
# Dependencies of the tools for Kafka Connect. No test needs these dependencies, and they are half of the
# download.
_UNUSED = tuple(f"org.apache.kafka:connect-{name}" for name in ("runtime", "json", "api", "transforms"))


class Jvm(NamedTuple):
    """Heap and options of a JVM; `archived_classes` enables a class data sharing archive (`_cds_option`)."""

    heap_mb: int
    options: tuple[str, ...]
    archived_classes: bool = False


# For short-lived processes on few cores, the C1 compiler and the serial garbage collector start fastest.
QUICK_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
QUICK_JVM = Jvm(256, QUICK_OPTIONS, archived_classes=True)
QUICK_BROKER_JVM = Jvm(512, QUICK_OPTIONS, archived_classes=True)

# Benchmarks use the options of Kafka's own scripts: kafka-run-class.sh, and the heap sizes of
# kafka-server-start.sh and kafka-share-consumer-perf.sh.
_AS_SHIPPED = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
# Write warnings of the JVM to standard error. By default, the JVM writes its warnings to the program's
# standard output.
WARNINGS_ASIDE = ("-Xlog:disable", "-Xlog:all=warning:stderr")
SHIPPED_BROKER_JVM = Jvm(1024, ("-Xms1024m", *_AS_SHIPPED))
SHIPPED_CLIENT_JVM = Jvm(512, _AS_SHIPPED)


@dataclass(frozen=True)
class KafkaJars:
    """The jars of one Kafka release."""

    release: str
    directory: Path

    def java_command(self, main_class: str, *arguments: str, jvm: Jvm = QUICK_JVM) -> list[str]:
        """Return the command that runs `main_class`, of Kafka or of `tests/kafka/java`."""
        class_path = self._class_path()
        return [
            _find_program("java"),
            f"-Xmx{jvm.heap_mb}m",
            *jvm.options,
            *WARNINGS_ASIDE,
            *(self._cds_option(class_path) if jvm.archived_classes else ()),
            f"-Dlog4j2.configurationFile={_LOG_CONFIG}",
            "-cp",
            class_path,
            main_class,
            *arguments,
        ]

    def run(
        self, main_class: str, *arguments: str, seconds: float = 180, jvm: Jvm = QUICK_JVM
    ) -> "subprocess.CompletedProcess[str]":
        """Run `main_class` to completion; the caller checks the exit code."""
        return subprocess.run(
            self.java_command(main_class, *arguments, jvm=jvm),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def _class_path(self) -> str:
        # Sort the class path, because a class data sharing archive is valid for one order only.
        return os.pathsep.join(map(str, [self._build_test_jar(), *sorted(self.directory.glob("*.jar"))]))

    def _build_test_jar(self) -> Path:
        """Return the jar of `tests/kafka/java`, which is rebuilt when a source changes."""
        sources = sorted(_JAVA_SOURCES.glob("*.java"))
        made = self.directory.parent / f"driver-{_hash_parts(*(source.read_bytes() for source in sources))}"
        if not made.exists():
            with _fill_directory_once(made) as empty, tempfile.TemporaryDirectory() as scratch:
                if empty:
                    compiler = [_find_program("javac"), "-cp", f"{self.directory}/*", "-d", scratch]
                    _run_command([*compiler, *map(str, sources)])
                    _run_command(
                        [
                            _find_program("jar"),
                            "--create",
                            "--file",
                            str(empty / _CLASSES),
                            "-C",
                            scratch,
                            ".",
                        ]
                    )
        return made / _CLASSES

    def _cds_option(self, class_path: str) -> list[str]:
        """Return the JVM option for a class data sharing archive (JEP 350), which is created if missing.

        With an archive, a broker needs two thirds of the processor time to start, and tests start hundreds of
        brokers. The archive is written by a broker that starts and stops. The archive is valid for one JVM
        and one class path until either changes. If the JVM writes no archive, return no options.
        """
        files = list(map(Path, class_path.split(os.pathsep)))
        write = partial(_write_class_archive, self)
        return class_archive_options(self.directory.parent, files, QUICK_BROKER_JVM.options, write)


def class_archive_options(
    directory: Path, class_path: Sequence[Path], options: Sequence[str], write: Callable[[Path], None]
) -> list[str]:
    """Return the JVM option for the class data sharing archive in `directory`; create it if missing."""
    java = Path(_find_program("java")).resolve()
    ages = [str(file.stat().st_mtime_ns) for file in (java, *class_path)]
    wanted = [str(java), *map(str, class_path), *ages, *options]
    made = directory / f"archive-{_hash_parts(*(word.encode() for word in wanted))}"
    if not made.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with _fill_directory_once(made) as empty:
            if empty:
                write(empty / _ARCHIVE)
    archive = made / _ARCHIVE
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _write_class_archive(jars: KafkaJars, archive: Path) -> None:
    """Start and stop a broker, so that its JVM writes the class data sharing archive at exit."""
    # Imported in the function, because that module imports this module.
    from tests.kafka.broker import Broker

    options = (*QUICK_BROKER_JVM.options, f"-XX:ArchiveClassesAtExit={archive}")
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(jars, Path(scratch), jvm=Jvm(QUICK_BROKER_JVM.heap_mb, options))
        broker.start()
        broker.stop()


def _hash_parts(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def fetch_jars(release: str) -> KafkaJars:
    """Return the jars of `release`, after fetching them if they are not cached."""
    tools = _TOOLS_RELEASE.get(release, release)
    wanted = [
        Artifact("org.apache.kafka", "kafka_2.13", release, ("org.apache.kafka:kafka-tools-api",)),
        Artifact("org.apache.kafka", "kafka-tools-api", tools),
        Artifact("org.apache.kafka", "kafka-tools", tools, _UNUSED),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
        Artifact("org.apache.logging.log4j", "log4j-core", "2.24.3"),
    ]
    return KafkaJars(release, fetch_artifacts(release, wanted))


class Artifact(NamedTuple):
    """A Maven artifact; `without` lists dependencies (`group:artifact`) that are not fetched."""

    group: str
    name: str
    version: str
    without: tuple[str, ...] = ()

    def dependency_xml(self) -> str:
        exclusions = "".join(
            "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>".format(*each.split(":"))
            for each in self.without
        )
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version><exclusions>{exclusions}</exclusions></dependency>"
        )


def cache_directory() -> Path:
    return Path(os.environ.get("KAFKA_JARS_DIR") or REPOSITORY / ".kafka").resolve()


def fetch_artifacts(name: str, wanted: Sequence[Artifact]) -> Path:
    """Return a directory with Maven artifacts and their dependencies, after fetching them if not cached.

    The cache is `.kafka/NAME` of the repository, or KAFKA_JARS_DIR/NAME.
    """
    jars = cache_directory() / name / "jars"
    if not jars.exists():
        jars.parent.mkdir(parents=True, exist_ok=True)
        with _fill_directory_once(jars) as empty:
            if empty:
                _run_maven(wanted, empty)
    return jars


def _run_maven(wanted: Sequence[Artifact], output: Path) -> None:
    dependencies = "".join(each.dependency_xml() for each in wanted)
    project = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies>"
        "</project>"
    )
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pom.xml").write_text(project)
        _run_command(
            [_find_program("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={output}"],
            directory=scratch,
        )


@contextmanager
def _fill_directory_once(directory: Path) -> Iterator[Path | None]:
    """Yield a directory to fill, which is renamed to `directory` at the end; or None if `directory`
    exists.

    A lock prevents other processes from filling the same directory.
    """
    with directory.with_name(directory.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            yield None
            return
        unfinished = directory.with_name(directory.name + ".unfinished")
        # An earlier process may have been killed while it filled the directory.
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(directory)


def _find_program(name: str) -> str:
    path = program_path(name)
    assert path is not None, f"{name} is not installed"
    return path


def _run_command(command: list[str], directory: str | None = None) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"

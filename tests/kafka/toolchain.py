"""The programs that tests with a real broker need, and what to say where they are missing."""

import os
import shutil

# Debian's name of the package that brings each program.
PACKAGES = {
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "haproxy": "haproxy",
}
# Everything is demanded of a machine that sets this: there a missing program fails tests.
REQUIRE_ALL = "SHARE_COORDINATOR_REQUIRE_ALL"


def program_path(program: str) -> str | None:
    """Return where `program` is, or None. Looks in /usr/sbin too, which ordinary users often lack."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def missing_programs() -> list[str]:
    """Return the programs that are not installed here; an empty list if every test can run."""
    return [program for program in PACKAGES if program_path(program) is None]


def all_required() -> bool:
    return os.environ.get(REQUIRE_ALL) == "1"


def how_to_get(programs: list[str]) -> str:
    """Say in one line which of `programs` are missing and which command installs them."""
    packages = list(dict.fromkeys(PACKAGES[program] for program in programs))
    return f"no {', '.join(programs)} here; to get them: apt-get install {' '.join(packages)}"

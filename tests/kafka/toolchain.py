"""Find the programs that tests with a real broker need, and the command that installs them."""

import os
import shutil

# The Debian package of each program.
BROKER_PACKAGES = {
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "haproxy": "haproxy",
}
# If this variable is set, a missing program fails tests instead of skipping them.
REQUIRE_ALL = "SHARE_COORDINATOR_REQUIRE_ALL"


def program_path(program: str) -> str | None:
    """Return the path of `program`, or None.

    The function searches /usr/sbin too, which is often not in a user's PATH.
    """
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def missing_programs() -> list[str]:
    """Return the programs that are not installed; an empty list if every test can run."""
    return [program for program in BROKER_PACKAGES if program_path(program) is None]


def are_all_required() -> bool:
    return os.environ.get(REQUIRE_ALL) == "1"


def install_hint(programs: list[str]) -> str:
    """Return one line with the missing `programs` and the command that installs them."""
    packages = list(dict.fromkeys(BROKER_PACKAGES[program] for program in programs))
    return f"no {', '.join(programs)} here; to get them: apt-get install {' '.join(packages)}"

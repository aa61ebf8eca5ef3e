"""Generate the modules of `protocol.messages`; with ``--check``, only list the files that differ."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from protocol.codegen.package import MESSAGES, write_package


def main(arguments: Sequence[str], directory: Path = MESSAGES, out: TextIO = sys.stdout) -> int:
    """Write or check the generated files in a directory, and print the names of differing files to ``out``.

    Returns the exit status: 1 if ``--check`` is given and a file differs, else 0. A Python file without a
    schema counts as differing and is removed, unless ``--check`` is given.
    """
    parser = argparse.ArgumentParser(prog="python -m protocol.codegen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    only_check = parser.parse_args(arguments).check
    wanted = write_package()
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.py")}
    names = sorted(wanted.keys() | present.keys())
    differing = [name for name in names if wanted.get(name) != present.get(name)]
    for name in differing:
        out.write(f"{directory.name}/{name}\n")
    if only_check:
        return 1 if differing else 0
    for name in differing:
        if name in wanted:
            (directory / name).write_text(wanted[name], encoding="utf-8")
        else:
            (directory / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

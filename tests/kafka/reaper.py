"""A small process that outlives the test run for a moment, to kill what the run started.

It reads "+PID" and "-PID" lines and remembers the process groups. When its standard input ends, for
whatever reason the test run ended (kill -9 too), it kills those that are left. It imports nothing of ours:
it is run as a script.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        change, pid = line[0], int(line[1:])
        if change == "+":
            groups.add(pid)
        else:
            groups.discard(pid)
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    # A Ctrl-C at the terminal is for the test run; its end reaches us as the end of the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()

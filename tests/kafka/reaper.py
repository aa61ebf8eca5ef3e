"""Kill the remaining child processes of a test process after the test process has ended.

The reaper reads "+PID" and "-PID" lines, which add and remove process groups. The standard input of the
reaper closes when the test process ends, even by SIGKILL. Then the reaper kills the remaining groups. The
reaper runs as a script and imports no project modules.
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
    # Ctrl-C also reaches this process. The reaper ignores the signal and waits for the end of its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()

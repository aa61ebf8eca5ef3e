"""Resources of the process: clocks, the event loop, logging, open files and optional dependencies."""

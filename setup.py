"""Compile the extension modules of pyproject.toml on all processors; install all of them or none."""

import os
import sys
from copy import copy
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class ParallelBuildExt(build_ext):
    """A build_ext command that runs Cython and the C compiler on several modules at a time."""

    _failed = False

    def build_extensions(self) -> None:
        self.parallel = self.parallel or os.cpu_count()
        # Except on Linux, the processes of cythonize are not forked and would execute this file again.
        processes = self.parallel if sys.platform == "linux" else 0
        # cythonize returns new extensions that lack the attribute `optional`, so only their sources are used.
        translated = cythonize([copy(extension) for extension in self.extensions], nthreads=processes)
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()
        # The modules use each other's C types, so imports would fail if only some modules existed.
        if self._failed:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            self._failed = True
            raise


setup(cmdclass={"build_ext": ParallelBuildExt})

"""Translate and compile the extension modules of pyproject.toml on all processors."""

import os
import sys
from copy import copy

from Cython.Build import cythonize
from setuptools import setup
from setuptools.command.build_ext import build_ext


class ParallelBuildExt(build_ext):
    """Translates the modules in several processes, then starts several compilers."""

    def build_extensions(self) -> None:
        self.parallel = self.parallel or os.cpu_count()
        # Only Linux forks the processes of cythonize; elsewhere, they would execute this file again.
        processes = self.parallel if sys.platform == "linux" else 0
        # cythonize returns new extensions, without the attribute `optional`.
        translated = cythonize([copy(extension) for extension in self.extensions], nthreads=processes)
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()


setup(cmdclass={"build_ext": ParallelBuildExt})

"""A pytest plugin that imports a mutant: `MUTANT=PATH:NUMBER pytest -p tests.mutation.planted TESTS`.

The plugin also defines the Hypothesis profile of mutation runs.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.mutation.executed_blocks import replace_code
from tests.mutation.mutants import compile_mutant, list_mutants

ENV = "MUTANT"
PROFILE = "mutants"
_ROOT = Path(__file__).parents[2]

# Hypothesis uses the same examples in each run, and no examples from earlier runs, so that the result of a
# mutant can be repeated.
settings.register_profile(
    PROFILE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=25,
    derandomize=True,
    database=None,
)

if _name := os.environ.get(ENV):
    _path, _, _number = _name.rpartition(":")
    _code = compile_mutant(_ROOT, list_mutants(_ROOT, _path)[int(_number)])
    replace_code(lambda path: _code if path == str(_ROOT / _path) else None)

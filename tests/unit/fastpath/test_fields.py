"""The compiled module declares the same fields as the Python module `coordinator.fastpath.fields`."""

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest

from coordinator import fastpath
from coordinator.fastpath import fields

compiled = pytest.importorskip(
    "coordinator.fastpath._compiled", reason="the compiled module was not built: is there a C compiler?"
)


def load_python_fields(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load `coordinator.fastpath.fields` as Python does if there is no compiled module."""
    spec = spec_from_file_location("definition_of_fields", fields.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(fastpath, "compiled", None)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["ConnectionFields", "RequestMemoryFields"])
def test_compiled_and_python_modules_declare_the_same_fields(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined: Any = getattr(load_python_fields(monkeypatch), name)
    declared = {field for field in vars(getattr(compiled, name)) if not field.startswith("__")}
    assert declared == set(defined.__slots__)

"""Generate the mutants of a module: copies of its syntax tree, each with one small change.

A change replaces an operator or a constant, negates a condition, or removes a statement. No test should
depend on the duration of `asyncio.sleep(0)`, log calls, annotations, type variables, assertions, formatted
texts, options of classes, `__repr__` and limits, so they are not changed. A constant index (`x[0]`) is not
changed, because each test that executes it fails.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# An integer at module level above this value, for example `16 << 20`, is a limit, and no test should depend
# on it.
_NOT_TUNED_MAX = 255
_LOGGERS = ("_logger", "logger")


class Mutant(NamedTuple):
    """One change of a source file. `number` is its index among all possible changes of the file."""

    path: str
    number: int
    # The qualified name of the innermost function or class.
    scope: str
    line: int
    # The first line of the changed statement, and whether it is executed when the module is imported.
    statement_line: int
    at_import: bool
    change: str
    source: str


class _Change(NamedTuple):
    scope: str
    line: int
    statement: ast.stmt
    at_import: bool
    text: str
    apply: Callable[[], None]


def list_mutants(root: Path, path: str) -> list[Mutant]:
    text = (root / path).read_text("utf-8")
    lines = text.splitlines()
    return [
        Mutant(
            path,
            number,
            change.scope,
            change.line,
            change.statement.lineno,
            change.at_import,
            change.text,
            lines[change.line - 1].strip(),
        )
        for number, change in enumerate(_ChangeCollector(ast.parse(text)).found)
    ]


def compile_mutant(root: Path, mutant: Mutant) -> CodeType:
    tree = ast.parse((root / mutant.path).read_text("utf-8"))
    _ChangeCollector(tree).found[mutant.number].apply()
    return compile(ast.fix_missing_locations(tree), str(root / mutant.path), "exec")


class _ChangeCollector:
    """The possible changes of a syntax tree, in a fixed order."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[_Change] = []
        self._statement: ast.stmt = tree.body[0]
        self._functions = 0
        self._scope: tuple[str, ...] = ()
        self._visit(tree)

    def _visit(self, node: ast.AST) -> None:
        if _is_excluded(node) or isinstance(node, ast.JoinedStr):
            return
        if not self._functions and _is_limit_constant(node):
            return
        outer, outer_scope = self._statement, self._scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._scope = (*outer_scope, node.name)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.stmt):
            self._statement = node
        for text, apply in _list_changes(node):
            line = getattr(node, "lineno", self._statement.lineno)
            self._add(line, self._statement, text, apply)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns") or (field == "slice" and isinstance(value, ast.Constant)):
                continue
            if field == "keywords" and isinstance(node, ast.ClassDef):
                continue
            # A function's body is executed after the import; its default values are evaluated during the
            # import.
            self._functions += is_function and field == "body"
            for place, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST):
                    if isinstance(value, list) and isinstance(child, ast.stmt):
                        self._visit_statement(value, place, child)
                    self._visit(child)
            self._functions -= is_function and field == "body"
        self._statement, self._scope = outer, outer_scope

    def _visit_statement(self, body: list[ast.stmt], place: int, statement: ast.stmt) -> None:
        if (text := _describe_removal(statement)) and not _is_excluded(statement):

            def remove_statement() -> None:
                body[place] = ast.copy_location(ast.Pass(), statement)

            self._add(statement.lineno, statement, text, remove_statement)

    def _add(self, line: int, statement: ast.stmt, text: str, apply: Callable[[], None]) -> None:
        at_import = not self._functions
        self.found.append(_Change(".".join(self._scope), line, statement, at_import, text, apply))


def _is_excluded(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__"
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Raise):
        return isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) == "AssertionError"
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.keyword):
        # These arguments are not changed; for example, `strict` of `zip` is only an assertion.
        return node.arg in ("strict", "daemon")
    if isinstance(node, ast.Call) and ast.unparse(node) == "asyncio.sleep(0)":
        return True
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return False
    name = ast.unparse(call.func).rpartition(".")
    return name[0].rpartition(".")[2] in _LOGGERS or name[2] == "TypeVar" or name[2].startswith("_log_")


def _is_limit_constant(node: ast.AST) -> bool:
    """Return whether an expression of integer literals is greater than `_NOT_TUNED_MAX`."""
    match node:
        case (
            ast.Constant(value=int())
            | ast.BinOp(left=ast.Constant(value=int()), right=ast.Constant(value=int()))
        ):
            value: int = eval(compile(ast.Expression(node), "", "eval"))
            return value > _NOT_TUNED_MAX
    return False


def _describe_removal(statement: ast.stmt) -> str:
    """Return a description of the removal of a statement, or an empty string if it is not removed."""
    if isinstance(statement, ast.Expr):
        value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        return "remove the call" if isinstance(value, ast.Call) else ""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        stored = all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        return "remove the assignment" if stored else ""
    names = {ast.Raise: "raise", ast.Delete: "del", ast.Break: "break", ast.Continue: "continue"}
    if isinstance(statement, ast.Return):
        return "remove the return" if statement.value is None else ""
    return f"remove the {names[type(statement)]}" if type(statement) in names else ""


def _list_changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                if new := _OPERATORS.get(type(operator)):
                    yield (
                        _describe_replacement(operator, new),
                        lambda place=place, new=new: node.ops.__setitem__(place, new()),
                    )
        case ast.BoolOp() | ast.AugAssign():
            if new := _OPERATORS.get(type(node.op)):
                yield _describe_replacement(node.op, new), lambda: setattr(node, "op", new())
        case ast.BinOp():
            texts = any(_is_string_literal(side) for side in (node.left, node.right))
            if not texts and (new := _OPERATORS.get(type(node.op))):
                yield _describe_replacement(node.op, new), lambda: setattr(node, "op", new())
        case ast.UnaryOp(op=ast.Not()):
            # `not x` becomes `not not x`, which is the truth value of x.
            yield "remove not", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Constant(value=bool()):
            yield f"{node.value} to {not node.value}", lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int()):
            yield f"{node.value} to {node.value + 1}", lambda: setattr(node, "value", node.value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield f"{name} to {_FUNCTIONS[name]}", lambda: setattr(node.func, "id", _FUNCTIONS[name])
        case ast.If() | ast.While() | ast.IfExp():
            if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Await):
                yield "negate the condition", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _is_string_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _describe_replacement(operator: ast.AST, new: type[ast.AST]) -> str:
    return f"{type(operator).__name__} to {new.__name__}"

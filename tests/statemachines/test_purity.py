"""The fold is pure: it imports nothing that knows a clock, chance or the outside, and uses no set order and no float."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import statemachines

FOLDER: Final = Path(statemachines.__file__).parent
PURE: Final = {
    "__future__",
    "collections",
    "collections.abc",
    "enum",
    "itertools",
    "typing",
    "msgspec",
    "msgspec.structs",
}
# What one file needs beyond that, and no other may use.
ALSO: Final = {"snapshot.py": {"hashlib"}, "diagrams.py": {"sys", "pathlib"}}
# Not part of the fold: it draws, and it judges.
UNORDERED: Final = {"invariants.py", "watcher.py"}
FILES: Final = sorted(FOLDER.glob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0
            yield node.module


def of_sets(tree: ast.AST) -> Iterator[int]:
    """Lines that iterate over something written as a set, or that make a list of one."""
    for node in ast.walk(tree):
        over: list[ast.expr] = []
        if isinstance(node, ast.For | ast.comprehension):
            over = [node.iter]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            over = node.args if node.func.id in {"list", "tuple", "iter", "enumerate"} else []
        elif isinstance(node, ast.Starred):
            over = [node.value]
        for each in over:
            called = each.func if isinstance(each, ast.Call) else None
            named = isinstance(called, ast.Name) and called.id in {"set", "frozenset"}
            if isinstance(each, ast.Set | ast.SetComp) or named:
                yield each.lineno


def makes_sets(tree: ast.AST) -> Iterator[int]:
    """Lines that make a set that is not a constant of the module, where its order could matter."""
    constants = {
        id(node)
        for part in ast.iter_child_nodes(tree)
        if isinstance(part, ast.AnnAssign)
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in constants:
            continue
        called = node.func if isinstance(node, ast.Call) else None
        named = isinstance(called, ast.Name) and called.id in {"set", "frozenset"}
        if isinstance(node, ast.Set | ast.SetComp) or named:
            assert isinstance(node, ast.expr)
            yield node.lineno


def of_floats(tree: ast.AST) -> Iterator[int]:
    """Lines that write a float, divide, or name the type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield node.lineno
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            # `folder / "name"` of the page that is drawn is no division.
            if not (
                isinstance(node, ast.BinOp)
                and isinstance(node.right, ast.Constant)
                and isinstance(node.right.value, str)
            ):
                yield node.lineno
        elif isinstance(node, ast.Name) and node.id == "float":
            yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_of_the_fold_imports_only_what_is_pure(file: Path) -> None:
    allowed = PURE | ALSO.get(file.name, set())
    outside = {
        name
        for name in imports(ast.parse(file.read_text()))
        if name not in allowed and name.partition(".")[0] != "statemachines"
    }
    assert outside == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_state_hangs_on_the_order_of_a_set_or_on_a_float(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert list(of_sets(tree)) == []
    assert list(of_floats(tree)) == []
    if file.name not in UNORDERED:
        assert list(makes_sets(tree)) == []


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("for x in {1, 2}: pass", of_sets),
        ("[x for x in set(y)]", of_sets),
        ("list({x for x in y})", of_sets),
        ("(*frozenset(y), 1)", of_sets),
        ("def f(y): return set(y)", makes_sets),
        ("x = 1.5", of_floats),
        ("x = a / b", of_floats),
        ("x /= 2", of_floats),
        ("x = float(y)", of_floats),
    ],
    ids=str,
)
def test_the_checks_see_what_they_look_for(code: str, check: object) -> None:
    assert callable(check)
    assert list(check(ast.parse(code))) == [1]


def test_the_fold_never_imports_its_drawings() -> None:
    for file in FILES:
        if file.name != "diagrams.py":
            assert "statemachines.diagrams" not in set(imports(ast.parse(file.read_text())))

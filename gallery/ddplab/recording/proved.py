"""Which claims a test proves, found in its source: the recorder and the book both ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def tests_in(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, tuple[str, ...]]]:
    """Every test function of a file, in order, that has ``@proves("id")`` above it, and the ids."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            claims = tuple(_proved(node))
            if claims:
                yield node, claims


def _proved(node: ast.FunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="proves"), args=[ast.Constant(value=str(claim))]):
                yield claim

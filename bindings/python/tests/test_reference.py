"""The documentation of the package: every public name has some, it names the exceptions, and the stubs have the same text.

MEMFERRY_WRITE_STUBS=1 with a run of these tests writes the docstrings of the installed package into the stubs of this tree.
"""

import ast
import builtins
import inspect
import os
import re
import textwrap
import unittest
from pathlib import Path

import memferry

SOURCE = Path(__file__).parents[1] / "python/memferry/_memferry.pyi"
INSTALLED = Path(memferry.__file__).parent / "_memferry.pyi"
INDENT = "    "


def names():
    """Each public name with its object: functions, classes, and what these define."""
    for name in memferry.__all__:
        value = getattr(memferry, name)
        if name != "__version__":
            yield name, value
        if isinstance(value, type) and not issubclass(value, BaseException):
            for member in vars(value):
                if not member.startswith("_"):
                    yield f"{name}.{member}", inspect.getattr_static(value, member)


def of_stubs(text):
    """Each name of the stubs with its node."""
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", member


def documented(node, text):
    """Lines of a docstring at the indentation of a node's body."""
    indent = INDENT + " " * node.col_offset
    first, *rest = textwrap.dedent(text).strip().split("\n")
    if not rest:
        return [f'{indent}"""{first}"""']
    rest = [indent + line if line else "" for line in rest]
    return [f'{indent}"""{first}', *rest, f'{indent}"""']


def written(stubs, docs):
    """The stubs with these docstrings instead of theirs."""
    lines = stubs.split("\n")
    nodes = [(name, node) for name, node in of_stubs(stubs) if name in docs]
    for name, node in sorted(nodes, key=lambda found: -found[1].lineno):
        first, *others = node.body
        if not others and lines[node.end_lineno : node.end_lineno + 1] != [""]:
            lines[node.end_lineno : node.end_lineno] = [""]
        is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        new = documented(node, docs[name])
        line = lines[first.lineno - 1]
        if is_doc and first.value.value is ... and not others:
            lines[first.lineno - 1] = line[: first.col_offset].rstrip()
            lines[first.end_lineno : first.end_lineno] = new
        elif is_doc:
            lines[first.lineno - 1 : first.end_lineno] = new
        else:
            start = first.lineno - 1 - len(getattr(first, "decorator_list", []))
            lines[start:start] = [*new, ""]
    return "\n".join(lines)


class Reference(unittest.TestCase):
    def test_every_public_name_is_documented(self):
        for name, value in names():
            with self.subTest(name):
                self.assertRegex(inspect.getdoc(value) or "", r"(?s)^\w.*\.$")

    def test_every_function_names_its_exceptions(self):
        for name, value in names():
            if not isinstance(value, type) and callable(value):
                with self.subTest(name):
                    self.assertRegex(inspect.getdoc(value), r"\n\nRaises \w*Error")

    def test_named_exceptions_exist(self):
        for name, value in names():
            for error in re.findall(r"\b[A-Z]\w*Error\b", inspect.getdoc(value)):
                with self.subTest(name):
                    found = getattr(memferry, error, None) or getattr(builtins, error, None)
                    self.assertTrue(isinstance(found, type) and issubclass(found, BaseException), error)

    def test_the_stubs_have_the_docstrings(self):
        docs = {name: inspect.getdoc(value) for name, value in names()}
        if "MEMFERRY_WRITE_STUBS" in os.environ:
            SOURCE.write_text(written(SOURCE.read_text(), docs))
            return
        stubs = {name: ast.get_docstring(node) for name, node in of_stubs(INSTALLED.read_text())}
        for name, doc in docs.items():
            with self.subTest(name):
                self.assertEqual(stubs.get(name), doc, "write them with MEMFERRY_WRITE_STUBS=1")


if __name__ == "__main__":
    unittest.main()

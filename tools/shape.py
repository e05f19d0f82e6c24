"""Says where the code outgrows its shape; arguments and branches are counted by ruff."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("domain", "stores", "activities", "workflows", "extensions", "wiring", "cli")
THINK_AT, ALL_LINES, FILE_LINES, FUNCTION_LINES, LONG = 7800, 8300, 300, 40, 25
LINES_OF: Final = {"workflows/queue.py": 200, "workflows/buildsignal.py": 100}
# What a workflow may catch: Temporal's failures, and the end of a wait.
CAUGHT: Final = re.compile("(Failure|Activity|ChildWorkflow|Started|Cancelled|Timeout)Error$")
STATE_WRITE: Final = re.compile(r"update\((\w+\.)?requests\).*\.values\(.*(\bstate=|'state':)")

Message = tuple[int, str]  # the line; what is wrong, and what to do


@dataclass(frozen=True)
class Source:
    name: str
    lines: int
    code: int  # without blank lines, comments, docstrings and imports
    nodes: tuple[ast.AST, ...]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))

    def calls(self, name: str) -> Iterator[ast.Call]:
        return (n for n in self.nodes if isinstance(n, ast.Call) and last_name(n.func) == name)


def code_lines(text: str, nodes: tuple[ast.AST, ...]) -> int:
    told: list[ast.stmt] = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    told += [n for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    left_out = {line for n in told for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for at, s in lines if s.strip() and s.strip()[0] != "#" and at not in left_out)


def last_name(node: ast.AST | None) -> str:
    return ast.unparse(node).rpartition(".")[2] if node else "everything"


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def sizes(source: Source) -> Iterator[Message]:
    if source.lines > (most := LINES_OF.get(source.name, FILE_LINES)):
        yield 1, f"{source.lines} lines, at most {most}: split it, or move decisions to the domain"
    for function in source.functions():
        if length(function) > FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {length(function)} lines: split it"


def state_writes(source: Source) -> Iterator[Message]:
    writes = [call for call in source.calls("values") if STATE_WRITE.search(ast.unparse(call))]
    allowed = 2 if source.name == "stores/transaction.py" else 0  # move and supersede
    for call in writes[allowed:]:
        yield call.lineno, "writes a request's state: call move of stores/transaction.py"


def retry_policies(source: Source) -> Iterator[Message]:
    for call in source.calls("RetryPolicy") if source.name != "workflows/policies.py" else ():
        yield call.lineno, "a retry policy: move it to workflows/policies.py"


def tries(source: Source) -> Iterator[Message]:
    for function in source.functions():
        if any("activity.defn" in ast.unparse(name) for name in function.decorator_list):
            for node in ast.walk(function):
                if isinstance(node, ast.Try | ast.TryStar):
                    yield node.lineno, "a try in an activity: raise, its interceptor classifies"


def catches(source: Source) -> Iterator[Message]:
    if source.name.startswith("workflows/"):
        caught = [(n.lineno, n.type) for n in source.nodes if isinstance(n, ast.ExceptHandler)]
        caught += [(call.lineno, kind) for call in source.calls("suppress") for kind in call.args]
        for line, kind in caught:
            for name in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
                if not CAUGHT.search(last_name(name)):
                    yield line, f"catches {last_name(name)}: let it pass"


def boolean_columns(source: Source) -> Iterator[Message]:
    for node in source.nodes if source.name == "stores/tables.py" else ():
        if isinstance(node, ast.Name | ast.Attribute) and last_name(node) in ("Boolean", "bool"):
            yield node.lineno, "a boolean column: store a time or a cause, or derive it"


SIGNS: Final = (sizes, state_writes, retry_policies, tries, catches, boolean_columns)


def sources() -> Iterator[Source]:
    folders = (path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py")))
    for path in (*folders, ROOT / "worker.py"):
        if "migrations" not in path.parts:
            text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
            nodes = tuple(ast.walk(ast.parse(text, name)))
            yield Source(name, len(text.splitlines()), code_lines(text, nodes), nodes)


def main() -> int:
    table: Counter[str] = Counter()
    wrong: list[str] = []
    for source in sources():
        table[source.name.partition("/")[0]] += source.code
        wrong += [f"{source.name}:{line}: {text}" for sign in SIGNS for line, text in sign(source)]
        for function in (f for f in source.functions() if length(f) > LONG):
            print(f"  {source.name}:{function.lineno}: {function.name} is long: {length(function)}")
    for folder, lines in [*table.items(), ("all", table.total())]:
        print(f"  {folder:<12}{lines:>6} lines of code")
    if table.total() > ALL_LINES:
        wrong.append(f".:1: over {ALL_LINES} lines: look for two mechanisms that do one job")
    elif table.total() >= THINK_AT:
        print(f"  The end is {ALL_LINES} lines: stop and think.")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

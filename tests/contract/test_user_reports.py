"""Every test that docs/user_reports.md relies on exists, and every report there relies on one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "user_reports.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def names_in(path: Path) -> set[str]:
    """Names of the tests of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE.read_text(encoding="utf-8")))))
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    assert name in names_in(ROOT / "tests" / file)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("]")[0].lstrip("| ["))
def test_every_report_has_a_link_a_judgement_and_a_test(row: str) -> None:
    report, _, applies, _, tests = (cell.strip() for cell in row.strip("|").split(" | "))
    assert "](https://github.com/" in report
    assert applies in ("yes", "part", "no")
    assert NAMED.search(tests)

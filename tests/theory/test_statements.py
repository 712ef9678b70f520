"""The list of statements, the functions, the tests and the table in the docs agree."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from bracketflow import theory
from bracketflow.theory.statements import STATEMENTS, as_markdown

HERE = Path(__file__).parent
COMPUTED = [statement for statement in STATEMENTS if statement.functions]
FUNCTIONS = sorted(set(theory.__all__) - {"Check"})


def name(statement):
    return statement.labels[0]


def written_tests():
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name.removeprefix("test_")


def test_the_list_holds_every_theorem_lemma_and_remark_of_the_paper_once():
    """110 environments: 103 labelled ones, of which one has two labels, and 7 without."""
    labels = Counter(label for statement in STATEMENTS for label in statement.labels)
    assert max(labels.values()) == 1
    kinds = Counter(label.split(":")[0] for label in labels)
    assert kinds["unlabelled"] == 7
    named = sum(kinds[kind] for kind in ("thm", "lem", "prop", "cor", "rem", "ass", "ex"))
    assert named == 104 - 3  # three twins carry the prefixes app and app1


@pytest.mark.parametrize("statement", COMPUTED, ids=name)
def test_a_computed_statement_has_functions_that_cite_it_and_tests_that_exist(statement):
    assert set(statement.functions) <= set(FUNCTIONS)
    cited = " ".join(getattr(theory, function).__doc__ for function in statement.functions)
    assert any(label in cited for label in statement.labels)
    assert statement.tests
    assert set(statement.tests) <= set(written_tests())


def test_test_names_are_unique():
    assert max(Counter(written_tests()).values()) == 1


def test_a_statement_without_functions_says_why():
    for statement in STATEMENTS:
        if not statement.functions:
            assert statement.verdict.startswith("not computed: ")


def test_every_function_belongs_to_a_statement_and_cites_a_label():
    listed = {function for statement in STATEMENTS for function in statement.functions}
    assert listed == set(FUNCTIONS)
    for function in FUNCTIONS:
        assert re.search(r"\[[a-z0-9]+:", getattr(theory, function).__doc__), function


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.startswith("printed_")])
def test_a_printed_formula_has_a_corrected_twin_and_a_verdict_against_it(function):
    assert function.removeprefix("printed_") in FUNCTIONS
    (statement,) = [s for s in STATEMENTS if function in s.functions]
    assert "not" in statement.verdict


def test_the_table_in_the_docs_is_the_list():
    """When this fails, put the output of ``as_markdown()`` below the introduction."""
    docs = HERE.parents[1] / "docs" / "statements.md"
    assert docs.read_text("utf-8").endswith("\n\n" + as_markdown())

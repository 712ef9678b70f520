"""The race is fair, repeatable, and says where a rival wins."""

import json
import re

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.bench import SCENES, run_bench
from bracketflow.bench.contenders import OURS, contenders
from bracketflow.bench.page import verdict, write_page
from bracketflow.bench.race import table
from bracketflow.cli import main


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    return run_bench(["jump", "features"], quick=True, out=out), out


@pytest.mark.parametrize("name", SCENES)
def test_scenes_show_every_contender_the_same_observations(name):
    scene = SCENES[name]
    problem = scene.draw(np.random.default_rng(3), 4)
    block = bf.random_basis(problem.start.shape[0], 2, rng=0)
    first, second = (
        [bf.as_operator(operator) @ block for operator, _ in problem.observations()]
        for _ in range(2)
    )
    assert len(first) == 4
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    truth = problem.truth(3)
    assert truth.shape == problem.start.shape
    assert np.allclose(truth.T @ truth, np.eye(truth.shape[1]), atol=1e-10)


@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if not scene.rows])
def test_truth_is_what_the_signal_has(name):
    problem = SCENES[name].draw(np.random.default_rng(3), 3)
    truth = problem.truth(0)
    (operator, _), *_ = problem.observations()
    image = bf.as_operator(operator) @ truth
    residual = image - truth @ (truth.T @ image)
    # Rounding of a background of up to 1e6, and noise of Frobenius norm at most 1.
    assert np.linalg.norm(residual) <= 1.0 + 1e-8
    compressed = truth.T @ image
    assert np.linalg.norm(compressed - np.diag(np.diag(compressed))) <= 1.0 + 1e-8


def test_record_holds_curves_and_versions(record):
    content, out = record
    assert json.loads((out / "bench.json").read_text()) == content
    assert {"numpy", "scipy", "scikit-learn", "bracketflow"} == set(content["versions"])
    for name, curves in content["scenes"].items():
        problem = SCENES[name].draw(np.random.default_rng(0), 3)
        expected = set(contenders(SCENES[name], problem.start.shape[1]))
        assert expected <= set(curves)
        ours = curves[OURS]
        assert len(ours["error"]) == len(ours["matvecs"]) == len(ours["seconds"])
        assert np.all(np.diff(ours["matvecs"]) > 0)


def test_page_and_table_name_everyone_and_the_winner(record):
    content, out = record
    page = write_page(content, out).read_text()
    for name, curves in content["scenes"].items():
        lines = "\n".join(table(curves))
        for contender in curves:
            assert contender in lines
        assert SCENES[name].title in page
        assert verdict(curves) in page
    assert page.count("<svg") == 2
    assert re.search(r'(src|href)="(https?:)?//', page) is None  # nothing is fetched
    losing = {OURS: {"error": [2.0], "seconds": [1.0]}, "rival": {"error": [1.0], "seconds": [1.0]}}
    assert verdict(losing) == "rival ends 2 times closer than EigenTracker here."


def test_unknown_scenes_are_refused_with_the_known_ones(capsys, tmp_path):
    with pytest.raises(ValueError, match=r"unknown scenes \['x'\]: choose from static, noise"):
        run_bench(["x"])
    assert main(["bench", "x", "--out", str(tmp_path)]) == 2
    assert "choose from" in capsys.readouterr().err


def test_command_prints_tables_and_where_the_page_is(tmp_path, capsys):
    assert main(["bench", "jump", "--quick", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert OURS in shown
    assert str(tmp_path / "index.html") in shown

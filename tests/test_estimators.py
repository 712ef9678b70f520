"""StreamingPCA against PCA, IncrementalPCA and formulas; streams, noise floors, missing entries."""

import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

import bracketflow as bf
from bracketflow.estimators import EigenBasisTransformer, StreamingPCA

EXAMPLES = Path(__file__).parents[1] / "examples"
EPS = np.finfo(float).eps
DATA = {"digits": load_digits().data, "breast_cancer": load_breast_cancer().data}
DATA |= {f"{name}, scaled": scale(rows) for name, rows in DATA.items()}


def spiked(rng, n_samples, n_features, sizes=(5, 4, 3)):
    """Rows with independent features, the first few of them larger."""
    sizes = np.r_[sizes, np.ones(n_features - len(sizes))]
    return rng.standard_normal((n_samples, n_features)) * sizes


def streamed(pca, rows, size):
    for start in range(0, len(rows), size):
        pca.partial_fit(rows[start : start + size])
    return pca


@pytest.mark.parametrize("power", [-50, 45])
@pytest.mark.parametrize("forget", [0, None])
def test_the_unit_of_the_rows_changes_nothing_in_single_precision(power, forget, rng):
    """Also where the square of a covariance is no number of that precision."""
    rows = spiked(rng, 1500, 30).astype(np.float32)
    unit = np.float32(2) ** power
    models = [StreamingPCA(3, forget=forget, random_state=0) for _ in range(2)]
    plain, scaled = (streamed(m, r, 100) for m, r in zip(models, (rows, unit * rows), strict=True))
    assert np.array_equal(plain.components_, scaled.components_)
    assert np.array_equal(unit**2 * plain.explained_variance_, scaled.explained_variance_)


def error(pca, exact):
    return bf.subspace_error(pca.components_.T, exact.components_.T)


def rounding(rows, exact, updates):
    """What that many SVDs may turn the subspace: updates · n · eps · σ₁/(σ_k − σ_{k+1})."""
    singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    k = len(exact.components_)
    gap = singular[k - 1] - singular[k]
    return updates * rows.shape[1] * EPS * singular[0] / gap


# Against PCA and IncrementalPCA -----------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 50, 500])
@pytest.mark.parametrize("name", DATA)
def test_batches_of_any_size_end_at_full_pca(name, size):
    rows, k = DATA[name][: 600 if size == 1 else None], 5  # benchmarks/estimators.py has them all
    exact = PCA(k, svd_solver="full").fit(rows)
    ours = error(streamed(StreamingPCA(k), rows, size), exact)
    assert ours <= rounding(rows, exact, len(rows) / size)
    if size >= k:
        assert ours <= error(IncrementalPCA(k, batch_size=size).fit(rows), exact)


@pytest.mark.parametrize("size", [7, 50, 500])
def test_more_features_than_are_kept_exactly(rng, size):
    rows, k = spiked(rng, 1500, 200), 3
    exact = PCA(k, svd_solver="full").fit(rows)
    theirs = IncrementalPCA(k, batch_size=size).fit(rows)
    ours = StreamingPCA(k, batch_size=size).fit(rows)
    assert ours._stream.covariance.vectors.shape == (4 * k + 10, 200)
    assert error(ours, exact) <= error(theirs, exact)
    # The trace is exact, so the mean of what is left out is as good as the components are.
    variance = exact.explained_variance_[0]
    assert ours.background_ == pytest.approx(
        exact.noise_variance_, abs=variance * error(ours, exact) ** 2
    )


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("shape", [(200, 6), (4, 6)], ids=["tall", "wide"])
def test_everything_that_pca_has(rng, shape, whiten):
    rows = spiked(rng, *shape) + 100.0
    k = 3
    ours = streamed(StreamingPCA(k, whiten=whiten), rows, 3)
    exact = PCA(k, whiten=whiten, svd_solver="full").fit(rows)
    for name in [
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "mean_",
    ]:
        np.testing.assert_allclose(getattr(ours, name), getattr(exact, name), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.var_, rows.var(axis=0))
    assert ours.n_samples_seen_ == len(rows)
    np.testing.assert_allclose(ours.transform(rows), exact.transform(rows), atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(rows)).shape, rows.shape)
    assert ours.noise_variance_ == pytest.approx(exact.noise_variance_, abs=1e-12)
    if len(rows) > rows.shape[1]:
        np.testing.assert_allclose(ours.get_covariance(), exact.get_covariance(), rtol=1e-9)
        np.testing.assert_allclose(ours.get_precision(), exact.get_precision(), rtol=1e-8)
        np.testing.assert_allclose(ours.score_samples(rows), exact.score_samples(rows), rtol=1e-8)
        assert ours.score(rows) == pytest.approx(exact.score(rows))
        unseen = np.linalg.eigvalsh(np.cov(rows.T))[:-k]
        assert ours.background_ == pytest.approx(unseen.mean())


def test_few_rows_work_and_more_make_it_right(rng):
    rows = spiked(rng, 60, 8)
    pca = StreamingPCA(5).partial_fit(rows[:1])
    assert pca.components_.shape == (5, 8)
    np.testing.assert_array_equal(pca.explained_variance_, np.zeros(5))
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(5), atol=8 * EPS)
    pca.partial_fit(rows[1:3]).partial_fit(rows[3:])
    assert error(pca, PCA(5).fit(rows)) < 1e-12


def test_fit_starts_anew(rng):
    first, second = spiked(rng, 50, 4), spiked(rng, 50, 6)
    pca = StreamingPCA(2).fit(first).fit(second)
    assert pca.n_features_in_ == 6
    np.testing.assert_array_equal(pca.components_, StreamingPCA(2).fit(second).components_)


# Streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [0.0, 0.02, None])
@pytest.mark.parametrize("n_features", [6, 140])
def test_it_does_not_matter_how_rows_are_cut(rng, forget, n_features):
    rows = spiked(rng, 400, n_features) + rng.standard_normal(n_features)
    cuts = [1, 3, 20, 150, 400] if n_features == 6 else [150, 400]
    pieces = [streamed(StreamingPCA(2, forget=forget, random_state=0), rows, c) for c in cuts]
    # Beyond 128 features the columns left out depend on the cut, a little.
    atol = 1e-11 if n_features == 6 else 0.1
    for pca in pieces[1:]:
        np.testing.assert_allclose(pca.components_, pieces[0].components_, atol=atol)
        np.testing.assert_allclose(pca.mean_, pieces[0].mean_, atol=1e-12)
        np.testing.assert_allclose(pca.var_, pieces[0].var_, rtol=1e-11)


def test_forgetting_is_an_exponentially_weighted_covariance(rng):
    rows, forget = spiked(rng, 300, 5) + np.linspace(0, 3, 300)[:, None], 0.03
    pca = streamed(StreamingPCA(5, forget=forget), rows, 7)
    weights = (1 - forget) ** np.arange(299, -1, -1.0)
    mean = weights @ rows / weights.sum()
    np.testing.assert_allclose(pca.mean_, mean)
    covariance = np.cov(rows.T, aweights=weights)
    np.testing.assert_allclose(pca.get_covariance(), covariance, rtol=1e-9, atol=1e-12)


def drifting(rng, n, kind, batches=60, size=50, k=2):
    """Batches of rows and their true components, which turn, jump or stand still."""
    basis = bf.random_basis(n, rng=rng)
    generator = rng.standard_normal((n, n))
    generator = 0.05 * (generator - generator.T) / n**0.5
    for t in range(batches):
        if kind == "turning":
            basis = bf.cayley(basis, generator)
        if kind == "jumping" and t == batches // 3:
            basis = bf.random_basis(n, rng=rng)
        yield spiked(rng, size, n, np.linspace(5, 3, k)) @ basis.T, basis[:, :k]


def followed(kind, seed, forget):
    """Median subspace error over the second half of a drifting stream."""
    pca = StreamingPCA(2, forget=forget, random_state=seed)
    errors = []
    for rows, truth in drifting(np.random.default_rng(seed), 12, kind):
        pca.partial_fit(rows)
        errors.append(bf.subspace_error(pca.components_.T, truth))
    return np.median(errors[len(errors) // 2 :])


@pytest.mark.parametrize("kind", ["still", "turning", "jumping"])
def test_learned_forgetting_is_near_the_best_fixed_one(kind, seed):
    fixed = [followed(kind, seed, forget) for forget in (0.0, 0.001, 0.003, 0.01, 0.03)]
    learned = followed(kind, seed, None)
    assert learned <= 2 * min(fixed)
    assert learned < max(fixed) / 2


def mirrored(rows):
    """Rows without a mean."""
    return np.concatenate([rows, -rows])


@pytest.mark.parametrize("n_features", [20, 160])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_background_does_not_turn_the_components(rng, n_features, size):
    clean, noisy = StreamingPCA(3), StreamingPCA(3)
    scatter, background = 0.0, 0.0
    for t in range(6):
        rows = mirrored(spiked(rng, 60, n_features))
        level = size * (1 + np.sin(t))
        clean.partial_fit(rows)
        noisy.partial_fit(rows).partial_fit(mirrored(level * np.eye(n_features)))
        scatter += rows.T @ rows
        background += 2 * level**2
    values = np.linalg.eigvalsh(scatter)[::-1]
    # Rounding of 18 updates, background and all, against the gap of the signal.
    tolerance = 18 * n_features * EPS * (values[0] + background) / (values[2] - values[3])
    assert error(noisy, clean) <= tolerance
    rise = noisy.background_ * (noisy.n_samples_seen_ - 1)
    rise -= clean.background_ * (clean.n_samples_seen_ - 1)
    assert rise == pytest.approx(background, rel=1e-6)


@pytest.mark.parametrize("n_features", [20, 160])
def test_the_rounding_of_a_background_does_not_grow_with_the_batches(rng, n_features):
    clean, noisy = StreamingPCA(3), StreamingPCA(3)
    count, level = 60, 1e4
    none = np.zeros((2 * n_features, n_features))
    scatter = 0.0
    for _ in range(count):
        rows = mirrored(spiked(rng, 60, n_features))
        clean.partial_fit(np.concatenate([rows, none]))
        noisy.partial_fit(np.concatenate([rows, mirrored(level * np.eye(n_features))]))
        scatter += rows.T @ rows
    values = np.linalg.eigvalsh(scatter)[::-1]
    # As if all rows had come in one batch.
    tolerance = n_features * EPS * (values[0] + count * 2 * level**2) / (values[2] - values[3])
    assert error(noisy, clean) <= tolerance


def test_error_bars_hold(rng):
    runs, sizes = 300, np.array([4.0, 2.0, 1.0, 1.0])
    for draw, variance in ((rng.uniform, 1 / 12), (rng.laplace, 2.0)):
        held = []
        for _ in range(runs):
            rows = draw(size=(400, 4)) * sizes
            pca = StreamingPCA(2, batch_size=400).fit(rows)
            miss = abs(pca.explained_variance_ - variance * sizes[:2] ** 2)
            held.append(miss <= pca.error_bars_)
        # 0.95, less a little for 400 rows, less three standard deviations of 600 answers.
        assert np.mean(held) > 0.93 - 3 * (0.95 * 0.05 / (2 * runs)) ** 0.5


# Kinds of input ---------------------------------------------------------------------------------


def test_float32_is_kept_and_a_large_mean_is_harmless(rng):
    rows = (spiked(rng, 400, 6) + 1e4).astype(np.float32)
    pca = streamed(StreamingPCA(3), rows, 40)
    for name in ["components_", "mean_", "explained_variance_", "singular_values_", "error_bars_"]:
        assert getattr(pca, name).dtype == np.float32
    assert pca.transform(rows).dtype == np.float32
    exact = PCA(3, svd_solver="full").fit(rows.astype(float))
    assert error(pca, exact) < 100 * np.finfo(np.float32).eps


@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csc_matrix, sparse.lil_array])
def test_sparse_rows_are_rows(rng, container):
    dense = np.where(rng.random((120, 9)) < 0.3, spiked(rng, 120, 9), 0.0)
    rows = container(dense)
    expected = StreamingPCA(3).fit(dense)
    for pca in (StreamingPCA(3, batch_size=11).fit(rows), StreamingPCA(3).partial_fit(rows)):
        np.testing.assert_allclose(pca.components_, expected.components_, atol=1e-10)
        np.testing.assert_allclose(pca.transform(rows), expected.transform(dense), atol=1e-9)


def test_memory_mapped_rows_are_read_in_batches_and_never_written(rng, tmp_path):
    rows = spiked(rng, 500, 8).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    pca = StreamingPCA(2, batch_size=50, copy=False).fit(mapped)
    np.testing.assert_array_equal(
        pca.components_, StreamingPCA(2, batch_size=50).fit(rows).components_
    )
    np.testing.assert_array_equal(mapped, rows)
    writable = rows.copy()
    StreamingPCA(2, copy=False).partial_fit(writable)
    np.testing.assert_array_equal(writable, rows)


def test_nan_is_an_error_that_says_where_and_changes_nothing(rng):
    rows = spiked(rng, 40, 5)
    pca = StreamingPCA(2, batch_size=10).partial_fit(rows)
    before = pickle.dumps(pca)
    bad = rows.copy()
    bad[25, 3] = np.nan
    with pytest.raises(
        ValueError, match=r"nan \(NaN or inf\) in row 25, feature 3.*nan=\"ignore\""
    ):
        pca.partial_fit(bad)
    assert pickle.dumps(pca) == before
    bad[25, 3] = np.inf
    with pytest.raises(ValueError, match="inf"):
        StreamingPCA(2, nan="ignore").fit(bad)


@pytest.mark.parametrize("size", [7, 200, 2000])
def test_missing_entries_count_as_the_mean(rng, size):
    whole = spiked(rng, 2000, 10) @ bf.random_basis(10, rng=rng) + 50.0
    rows = np.where(rng.random(whole.shape) < 0.05, np.nan, whole)
    pca = StreamingPCA(3, nan="ignore", batch_size=size).partial_fit(rows)
    np.testing.assert_allclose(pca.mean_, np.nanmean(rows, axis=0))
    imputed = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    exact = PCA(3, svd_solver="full").fit(imputed)
    # The mean moved while rows came in, by about 1/√N of the spread: a second-order effect.
    assert error(pca, exact) < (1e-10 if size == 2000 else 5 / len(rows))
    np.testing.assert_allclose(
        pca.transform(rows), pca.transform(np.where(np.isnan(rows), pca.mean_, rows))
    )
    assert np.isfinite(pca.score(rows))


def test_a_feature_never_seen_has_no_say(rng):
    rows = spiked(rng, 50, 4)
    rows[:, 2] = np.nan
    pca = StreamingPCA(2, nan="ignore").fit(rows)
    np.testing.assert_array_equal(pca.components_[:, 2], 0.0)
    assert pca.var_[2] == pca.mean_[2] == 0.0


# Where people work ------------------------------------------------------------------------------


def test_pipeline_search_clone_and_joblib(rng):
    rows = spiked(rng, 120, 6)
    pipeline = make_pipeline(StandardScaler(), StreamingPCA(2))
    assert pipeline.fit_transform(rows).shape == (120, 2)
    search = GridSearchCV(StreamingPCA(), {"n_components": [1, 3], "forget": [0.0, 0.3]}, cv=3)
    search.fit(rows)
    assert search.best_params_ == {"n_components": 3, "forget": 0.0}
    fitted = clone(search.best_estimator_).fit(rows)
    halves = np.split(rows, 2)
    parallel = joblib.Parallel(n_jobs=2, backend="threading")
    scores = parallel(joblib.delayed(fitted.score)(half) for half in halves)
    assert scores == [fitted.score(half) for half in halves]


@pytest.mark.parametrize("forget", [0.01, None])
def test_a_pickled_stream_goes_on_as_if_nothing_had_happened(rng, forget):
    first, second = np.split(spiked(rng, 200, 6), 2)
    pca = StreamingPCA(2, forget=forget, random_state=1).partial_fit(first)
    restored = pickle.loads(pickle.dumps(pca)).partial_fit(second)
    np.testing.assert_array_equal(restored.components_, pca.partial_fit(second).components_)


def test_frames_in_and_out(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(spiked(rng, 50, 3), columns=["a", "b", "c"])
    pca = StreamingPCA(2).set_output(transform="pandas").fit(frame)
    assert list(pca.feature_names_in_) == ["a", "b", "c"]
    assert list(pca.transform(frame).columns) == ["streamingpca0", "streamingpca1"]
    frame.iloc[3, 1] = np.nan
    pca.set_params(nan="ignore").fit(frame)
    assert np.isfinite(pca.transform(frame)).all(axis=None)


@pytest.mark.parametrize("n_features", [6, 140])
def test_eigen_basis_decorrelates(rng, n_features):
    rows = spiked(rng, 500, n_features) @ bf.random_basis(n_features, rng=rng)
    basis = streamed(EigenBasisTransformer(), rows, 100)
    moved = basis.transform(rows)
    assert moved.shape == rows.shape
    np.testing.assert_allclose(np.cov(moved.T), np.diag(basis.explained_variance_), atol=1e-10)
    np.testing.assert_allclose(basis.inverse_transform(moved), rows, atol=1e-10)
    assert basis.background_ == basis.noise_variance_ == 0.0
    white = EigenBasisTransformer(whiten=True).fit_transform(rows)
    np.testing.assert_allclose(np.cov(white.T), np.eye(n_features), atol=1e-9)


# Callbacks --------------------------------------------------------------------------------------


class Log:
    """A callback that keeps the names of its calls, and ends the fit after some batches."""

    def __init__(self, batches=1000):
        self.calls = []
        self.left = batches

    def setup(self, estimator, context):
        self.calls.append("setup")

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.calls.append(f"end {context.task_name}")
        assert fitted_estimator.transform(np.zeros((1, 4))).shape == (1, 2)
        self.left -= 1
        return self.left == 0

    def teardown(self, estimator, context):
        self.calls.append("teardown")


def test_callbacks_see_every_batch_and_may_end_the_fit(rng):
    pytest.importorskip("sklearn.callback")
    rows = spiked(rng, 100, 4)
    log = Log()
    pca = StreamingPCA(2, batch_size=30).set_callbacks(log).fit(rows)
    batch = ["begin batch", "end batch"]
    assert log.calls == ["setup", "begin fit", *4 * batch, "end fit", "teardown"]
    pca.set_callbacks(Log(batches=2)).fit(rows)
    assert pca.n_samples_seen_ == 60


def test_progress_bar(rng, capsys):
    callback = pytest.importorskip("sklearn.callback")
    pytest.importorskip("rich")
    StreamingPCA(2, batch_size=30).set_callbacks(callback.ProgressBar()).fit(spiked(rng, 100, 4))
    assert "StreamingPCA" in capsys.readouterr().out


# Examples ---------------------------------------------------------------------------------------


def test_drop_in_example():
    errors = runpy.run_path(EXAMPLES / "incremental_pca_drop_in.py")["main"]()
    assert errors["StreamingPCA"] < errors["IncrementalPCA"]


def test_stock_prices_example():
    pytest.importorskip("skfolio")
    explained = runpy.run_path(EXAMPLES / "stock_prices.py")["main"]()
    assert explained["as learned"] > explained["nothing"]


def test_stock_prices_example_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skfolio.datasets", None)
    with pytest.raises(SystemExit, match="pip install skfolio"):
        runpy.run_path(EXAMPLES / "stock_prices.py")["main"]()


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 5}, "n_components must be at least 1 and at most 4"),
        ({"n_components": 0}, "n_components must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"forget": 1.0}, r"forget must be None or a number in \[0, 1\), got 1.0"),
        ({"forget": "slowly"}, "forget must be None or a number"),
        ({"nan": "drop"}, 'nan must be "raise" or "ignore", got \'drop\''),
    ],
)
def test_bad_parameters_are_named(rng, parameters, message):
    with pytest.raises(ValueError, match=message):
        StreamingPCA(**parameters).fit(spiked(rng, 20, 4))


def test_components_cannot_change_in_a_stream(rng):
    rows = spiked(rng, 20, 4)
    pca = StreamingPCA(2).fit(rows).set_params(n_components=3)
    with pytest.raises(ValueError, match=r"n_components was 2 and is now 3.*call fit"):
        pca.partial_fit(rows)


def test_missing_scikit_learn_names_the_extra():
    code = "import sys; sys.modules['sklearn'] = None; import bracketflow.estimators"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'bracketflow[sklearn]'" in done.stderr

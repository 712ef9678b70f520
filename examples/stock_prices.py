"""What moves twenty large American stocks together, 1990 to 2022, while it changes.

    pip install skfolio
    python examples/stock_prices.py

Daily log returns from the prices that skfolio ships. The factors of 1995 are not those of 2020, so
that a PCA of all years is right for none of them. Each month is first judged (the share of its
variance that the factors found so far explain), then taken in: by a PCA that forgets nothing, by
one that remembers about a year, and by one that learns how fast to forget.
"""

from __future__ import annotations

import sys

import numpy as np

from bracketflow.estimators import StreamingPCA

K = 3
MONTH = 21  # trading days
WARM_UP = 12  # months before a judgement counts
RULES = {"nothing": 0.0, "a year": 1 / 252, "as learned": None}


def load_returns():
    """Names, dates and daily log returns in per cent."""
    try:
        from skfolio.datasets import load_sp500_dataset
    except ImportError:
        sys.exit("this example needs the prices that skfolio ships: pip install skfolio")
    prices = load_sp500_dataset()
    returns = 100 * np.diff(np.log(prices.to_numpy()), axis=0)
    return list(prices.columns), prices.index[1:], returns


def explained(pca: StreamingPCA, rows: np.ndarray) -> float:
    """Share of the rows' variance that lies along the components."""
    return np.sum(pca.transform(rows) ** 2) / np.sum((rows - pca.mean_) ** 2)


def main() -> dict[str, float]:
    """Print the table; return the median share explained of a month not yet seen, per rule."""
    names, dates, returns = load_returns()
    estimators = {name: StreamingPCA(K, forget=f, random_state=0) for name, f in RULES.items()}
    scores: dict[str, list[float]] = {name: [] for name in estimators}
    print("until    first factor's share of the variance, its five largest stocks, background")
    for month in range(len(returns) // MONTH):
        rows = returns[month * MONTH : (month + 1) * MONTH]
        for name, pca in estimators.items():
            if month >= WARM_UP:
                scores[name].append(explained(pca, rows))
            pca.partial_fit(rows)
        if month % 36 == 35:
            pca = estimators["as learned"]
            largest = np.argsort(-abs(pca.components_[0]))[:5]
            print(
                f"{dates[(month + 1) * MONTH - 1]:%Y-%m}  {pca.explained_variance_ratio_[0]:4.0%}  "
                f"{' '.join(f'{names[i]:4}' for i in largest)}  {pca.background_:.1f}"
            )
    medians = {name: float(np.median(values)) for name, values in scores.items()}
    print("\nshare explained of the variance of a month not yet seen (median), forgetting …")
    for name, median in medians.items():
        print(f"  {name:<10} {median:.1%}")
    return medians


if __name__ == "__main__":
    main()

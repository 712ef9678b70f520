"""What we compare with, as methods of the same shape as the flows: `init`, pure `step`, counted.

One block product a step, except the two adapters to SciPy's solvers. Riem-QR and Riem-Polar of the
paper are `DoubleBracketFlow(retraction=qr)` and `DoubleBracketFlow(retraction=polar)`.
"""

from bracketflow.baselines.averaging import (
    CyclicJacobi,
    ExponentialAverage,
    OrthogonalIteration,
)
from bracketflow.baselines.deflation import CCIPCA, PASTd
from bracketflow.baselines.power import (
    AdaOja,
    EuclideanGradient,
    ProjectedOja,
    QROja,
    SubspaceIteration,
)
from bracketflow.baselines.printed import PrintedCayley, PrintedNeumann, PrintedStiefel
from bracketflow.baselines.solvers import Eigsh, Lobpcg

__all__ = [
    "CCIPCA",
    "AdaOja",
    "CyclicJacobi",
    "Eigsh",
    "EuclideanGradient",
    "ExponentialAverage",
    "Lobpcg",
    "OrthogonalIteration",
    "PASTd",
    "PrintedCayley",
    "PrintedNeumann",
    "PrintedStiefel",
    "ProjectedOja",
    "QROja",
    "SubspaceIteration",
]

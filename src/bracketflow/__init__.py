"""bracketflow: eigenvectors of a matrix you can only multiply with, blind to any background."""

from bracketflow.certificates import Certificate, certify, estimate_noise
from bracketflow.checkpoint import Checkpoint, load, save
from bracketflow.core import (
    BadObservation,
    ObservationError,
    Probe,
    Result,
    State,
    Status,
)
from bracketflow.driver import run, trajectory
from bracketflow.flows import (
    Adaptive,
    BrockettFlow,
    Certified,
    Constant,
    Decay,
    DoubleBracketFlow,
)
from bracketflow.geometry import (
    basis_error,
    cayley,
    neumann,
    polar,
    qr,
    random_basis,
    subspace_error,
)
from bracketflow.guarantees import guarantees
from bracketflow.monitor import Recorder
from bracketflow.observation import check_symmetric, lyapunov
from bracketflow.oracles import as_operator, counted, gram, shifted
from bracketflow.solve import decompose, track
from bracketflow.stopping import (
    aligned_below,
    lyapunov_below,
    max_matvecs,
    max_steps,
    residual_below,
)
from bracketflow.tracker import EigenTracker

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "BadObservation",
    "BrockettFlow",
    "Certificate",
    "Certified",
    "Checkpoint",
    "Constant",
    "Decay",
    "DoubleBracketFlow",
    "EigenTracker",
    "ObservationError",
    "Probe",
    "Recorder",
    "Result",
    "State",
    "Status",
    "aligned_below",
    "as_operator",
    "basis_error",
    "cayley",
    "certify",
    "check_symmetric",
    "counted",
    "decompose",
    "estimate_noise",
    "gram",
    "guarantees",
    "load",
    "lyapunov",
    "lyapunov_below",
    "max_matvecs",
    "max_steps",
    "neumann",
    "polar",
    "qr",
    "random_basis",
    "residual_below",
    "run",
    "save",
    "shifted",
    "subspace_error",
    "track",
    "trajectory",
]

"""Curvature of a PyTorch model as operators, and its leading eigenvectors while it trains.

Block products with no NumPy round trip: dtype and device are the model's. Needs the extra `torch`.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("bracketflow.torch needs PyTorch: pip install 'bracketflow[torch]'") from None

from bracketflow.torch.curvature import Curvature, gauss_newton, gradient_covariance, hessian
from bracketflow.torch.monitor import HessianMonitor

__all__ = ["Curvature", "HessianMonitor", "gauss_newton", "gradient_covariance", "hessian"]

"""Where do the waves come from? Directions of two moving sources, under a noise floor that swings.

A line of sensors, half a wavelength apart, hears two sources in receiver noise of variance σ².
The covariance of the sensors is signal + σ²I, so the leading eigenvectors hold the directions
whatever σ² is. A fixed unitary transform makes everything real.
"""

import numpy as np

import bracketflow as bf

SENSORS, SNAPSHOTS, BATCHES = 32, 200, 240


def unitary(n):
    """Makes real what equals its own conjugate read backwards, as a plane wave does; n even."""
    identity = np.eye(n // 2)
    mirror = identity[::-1]
    return np.block([[identity, 1j * identity], [mirror, -1j * mirror]]) / 2**0.5


def snapshots(angles, floor, rng):
    """Complex snapshots in rows: sources of power 1 from `angles`, noise of variance `floor`."""

    def gaussian(*shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / 2**0.5

    sensors = np.arange(SENSORS)
    waves = np.exp(1j * np.pi * np.outer(np.sin(np.radians(angles)), sensors))
    return gaussian(SNAPSHOTS, len(angles)) @ waves + floor**0.5 * gaussian(SNAPSHOTS, SENSORS)


def real_rows(z):
    """Two real rows a snapshot; their Gram matrix is the forward-backward averaged covariance."""
    y = z @ unitary(SENSORS).conj()
    return np.concatenate([y.real, y.imag]) * 2**0.5


def directions(basis):
    """Angles in degrees by ESPRIT: sensors 1 … n against sensors 0 … n-1."""
    waves = unitary(SENSORS) @ basis
    turns = np.linalg.eigvals(np.linalg.pinv(waves[:-1]) @ waves[1:])
    return np.sort(np.degrees(np.arcsin(np.angle(turns) / np.pi)))


rng = np.random.default_rng(0)
tracker = bf.EigenTracker(k=2)
state = tracker.init(bf.random_basis(SENSORS, 2, rng=rng))

print("batch   noise floor      true angles         tracked")
for t in range(BATCHES):
    angles = np.array([-40 + 0.1 * t, 30 - 0.05 * t])
    floor = 10 ** (0.5 + np.sin(t / 20))  # -5 to +15 dB of a source
    rows = real_rows(snapshots(angles, floor, rng))
    state, probe = tracker.step(bf.gram(rows), state)
    if t % 20 == 19:
        true, found = (f"{a[0]:7.2f} {a[1]:7.2f}" for a in (angles, directions(state.basis)))
        print(f"{t:5d}   {10 * np.log10(floor):8.1f} dB   {true}     {found}")

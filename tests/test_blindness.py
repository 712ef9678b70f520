"""What of a background reaches the answers of one call: the benchmark's scenes, other seeds.

Methods that are stepped are held to the same bound in `test_contracts`.
"""

import pytest

import blindness

CALLS = [entry for entry in blindness.ENTRIES if entry.called]


@pytest.mark.parametrize("entry", CALLS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("dtype", blindness.PRECISIONS)
@pytest.mark.parametrize("spectrum", blindness.SPECTRA)
def test_vectors_and_decisions_are_those_without_the_background(entry, dtype, spectrum):
    line = blindness.Line(entry, spectrum, dtype)
    for stream, background in ((entry.streams[-1], entry.backgrounds[0]), ("still", "constant")):
        scene = blindness.Scene(line.values, stream, background, dtype, seed=11)
        figure = entry.figure(scene)
        assert not (figure.clear and figure.otherwise)
        assert figure.otherwise or figure.apart <= blindness.ALLOWED * line.ratio

import pytest
import torch

from trueshift.anchor.places import agreement, lines


@pytest.mark.parametrize("room", [1, 9, 17, 32, 33, 40])
def test_windows_lie_in_the_frame_around_its_centre(room):
    (line,) = lines((room + 39,), (40,), None)
    assert line.modulus == min(32, room)
    places = line.corners(torch.arange(line.modulus))[:, 0]
    assert 0 <= places.min() <= places.max() < room
    assert (places.diff() == 1).all()  # the window moves along with its point
    centre = (room - 1) / 2
    assert abs(places.double().mean() - centre) <= 0.5
    assert abs(line.corners(torch.tensor(line.middle)) - centre) <= 0.5


def test_the_usual_frame_is_the_documented_rule():
    (line, _) = lines((256, 256), (224, 224), None)
    assert line.corners(torch.tensor(37 % 32)).tolist() == [16 + 37 % 32 - 16]
    assert line.corners(torch.tensor(line.middle)).tolist() == [16]


def test_agreement_of_the_usual_frame():
    axes = lines((256, 256), (224, 224), None)
    rates = [agreement(axes, (244, 244), (d, d)) for d in (1, 4, 32)]
    assert rates == [pytest.approx(0.928, abs=1e-3), pytest.approx(0.731, abs=1e-3), 0.0]

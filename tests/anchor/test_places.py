import pytest
import torch

from trueshift.anchor.places import Places
from trueshift.anchor.stability import agreement


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("room", [32, 33, 40])
def test_windows_are_the_places_of_the_lattice_nearest_the_centre(count, room):
    places = Places((room + 9,), (10,), (16,), (count,))
    for residue in range(16):
        corners = places.corners(torch.tensor([[residue]]))[0, :, 0].tolist()
        lattice = [p for p in range(room) if (p - places.start[0] - residue) % 16 == 0]
        centre = (room - 1) / 2
        nearest = sorted(lattice, key=lambda p: abs(p - centre))[:count]
        # Half a pixel either way: with an even number of places the centre is between two.
        assert max(abs(p - centre) for p in corners) <= max(abs(p - centre) for p in nearest) + 1
        assert set(corners) <= set(lattice)


def test_the_usual_frame_is_the_documented_rule():
    places = Places((256, 256), (224, 224), (16, 16), (1, 1))
    anchor = torch.tensor([[37, 200]])
    assert places.corners(anchor % 16)[0, 0].tolist() == [16 + 37 % 16 - 8, 16 + 200 % 16 - 8]
    assert places.corners(torch.tensor([places.middle]))[0, 0].tolist() == [16, 16]
    four = Places((256, 256), (224, 224), (16, 16), (2, 2))
    centred = four.corners(torch.tensor([four.middle]))[0].tolist()
    assert centred == [[8, 8], [8, 24], [24, 8], [24, 24]]


def test_agreement_of_the_usual_frame():
    places = Places((256, 256), (224, 224), (16, 16), (1, 1))
    rates = [agreement(places, (240, 240), (d, d)) for d in (1, 4, 16)]
    assert rates == [pytest.approx(0.872, abs=1e-3), pytest.approx(0.544, abs=1e-3), 0.0]

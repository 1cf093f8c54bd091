import itertools

import pytest
import torch
from torch.nn import functional as F

from trueshift.anchor import DifferenceOfGaussians
from trueshift.anchor.score import APART, peaks


@pytest.mark.parametrize(
    ("size", "frame"), [((150,), (97,)), ((72, 75), (37, 41)), ((27, 26, 28), (21, 22, 20))]
)
@pytest.mark.parametrize("layout", ["default", "channels_last", "transposed"])
def test_the_score_of_every_frame_of_a_scene_is_the_score_of_the_scene(size, frame, layout):
    scene = torch.randn(1, 3, *size)
    if layout == "channels_last":
        scene = scene.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "transposed":
        scene = scene.transpose(2, -1).contiguous().transpose(2, -1)
    score = DifferenceOfGaussians()
    whole = score(scene)
    for corner in torch.cartesian_prod(
        *[torch.arange(n - f + 1) for n, f in zip(size, frame, strict=True)]
    ).view(-1, len(size)):
        inside, expected = scene, whole
        for axis, (start, length) in enumerate(zip(corner.tolist(), frame, strict=True)):
            inside = inside.narrow(axis + 2, start, length)
            expected = expected.narrow(axis + 1, start, length - 10)
        assert torch.equal(score(inside), expected)


def strongest(score):
    return next(peaks(score))[:2]


def test_the_score_is_a_difference_of_gaussians():
    impulse = torch.zeros(1, 1, 41, 41)
    impulse[0, 0, 20, 20] = 1
    place = torch.arange(-20, 21) / 1.0

    def gaussian(variance):
        line = torch.exp(-(place**2) / (2 * variance))
        return torch.outer(line, line) / line.sum() ** 2

    score = DifferenceOfGaussians()(impulse)[0] / 32**2
    ideal = (gaussian(2.5) - gaussian(6.5)).abs()[5:-5, 5:-5]
    assert score.shape == (31, 31)
    torch.testing.assert_close(score, ideal, atol=0.2 * ideal.max().item(), rtol=0)
    assert strongest(score[None])[0] == [[14, 14]]  # counted from the second


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_frames_of_every_type_have_a_score(dtype):
    frames = (torch.rand(2, 3, 20, 24) * 200).to(dtype)
    expected = DifferenceOfGaussians()(frames.double())
    score = DifferenceOfGaussians()(frames).double()
    torch.testing.assert_close(score, expected, atol=1.0, rtol=0)


def test_equal_points_are_taken_in_reading_order_and_numbers_only():
    score = torch.tensor([[[0.0, 2.0, 1.0], [2.0, 2.0, torch.nan]], [[torch.nan] * 3] * 2])
    score = F.pad(score, (1, 1, 1, 1))
    positions, values = strongest(score)
    assert positions[0] == [0, 1]
    assert values == [2.0, -torch.inf]


def test_the_order_of_equal_points_moves_with_them():
    scene = torch.zeros(1, 1, 60, 60)
    scene[0, 0, [30, 30, 34], [30, 36, 28]] = 1.0
    found = set()
    for y, x in itertools.product(range(9), repeat=2):
        ((row, column),), _ = strongest(DifferenceOfGaussians()(scene[..., y : y + 50, x : x + 50]))
        found.add((row + y, column + x))
    assert len(found) == 1


def test_further_points_are_the_strongest_that_are_apart():
    score = torch.rand(2, 50, 60)
    neighbours = F.max_pool2d(score, 3, 1)
    inside = score[:, 1:-1, 1:-1]
    maxima = torch.where(inside == neighbours, inside, 0.0)
    chosen = []
    for positions, values, _ in peaks(score, 4):
        for b in range(2):
            left = maxima[b].clone()
            for y, x in [before[b] for before in chosen]:
                left[max(0, y - APART + 1) : y + APART, max(0, x - APART + 1) : x + APART] = -1
            assert values[b] == left.max()
            assert left[tuple(positions[b])] == left.max()
        chosen.append(positions)
    assert len(chosen) == 4


def test_slopes_of_stronger_points_outside_the_frame_do_not_count():
    scene = torch.zeros(1, 1, 60, 90)
    scene[0, 0, 30, 40] = 1.0
    scene[0, 0, 30, 70] = 4.0
    for width in range(60, 90):  # the stronger point enters, from its outermost slope on
        positions, _ = strongest(DifferenceOfGaussians()(scene[..., :width]))
        assert positions[0] == [24, 34 if width < 77 else 64]


@pytest.mark.parametrize("shape", [(70,), (24, 31), (9, 8, 10)])
def test_one_point_and_the_first_of_several_are_the_same(shape):
    ramp = torch.linspace(0, 3, shape[-1])  # the largest values lie at the border
    score = torch.rand(40, *shape) + ramp
    one, several = next(peaks(score)), next(peaks(score, 2))
    assert one[:2] == several[:2]
    assert torch.equal(one.left, several.left)

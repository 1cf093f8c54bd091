import pytest
import torch
from test_anchor import frames_of
from torch import nn

import trueshift as ts
from trueshift.anchor.places import lines
from trueshift.anchor.tiles import tiling


def segmenter(dim=2):
    """A network with stride and borders, whose maps are not equivariant by themselves."""
    torch.manual_seed(0)
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dim]
    layers = [conv(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)]
    return nn.Sequential(*layers, conv(6, 4, 3, padding=1)).eval()


CASES = {1: ((150,), (128,), 24), 2: ((84, 80), (70, 66), 24), 3: ((42, 40, 40), (36, 34, 35), 16)}


@pytest.mark.parametrize("dim", [1, 2, 3])
@torch.inference_mode()
def test_pixels_of_the_same_tile_of_the_scene_are_equal(dim):
    sizes, frame, window = CASES[dim]
    anchored = ts.anchor(segmenter(dim), window, modulus=4, maps=True)
    scene = torch.randn(3, *sizes) * 0.1
    scene[(slice(None), *[n // 2 for n in sizes])] = 9.0  # every frame sees this point
    corners = [(0,) * dim, (1,) * dim, (6,) + (2,) * (dim - 1)]
    maps, owners = [], []
    for corner in corners:
        one = frames_of(scene, frame, [corner])
        whole = torch.full((4, *sizes), torch.nan)
        owner = torch.full((*sizes, dim), -1)
        place = tuple(slice(c, c + f) for c, f in zip(corner, frame, strict=True))
        whole[(slice(None), *place)] = anchored(one)[0]
        where, index = anchored.tiles(one)
        owner[place] = where[0][index[0]] + torch.tensor(corner)
        maps.append(whole)
        owners.append(owner)
    for other, owner in zip(maps[1:], owners[1:], strict=True):
        same = (owner == owners[0]).all(-1) & (owner >= 0).all(-1)
        assert torch.equal(other[:, same], maps[0][:, same])
        both = ~maps[0][0].isnan() & ~other[0].isnan()
        assert same.sum() > both.sum() / 10
        assert not torch.equal(other[:, both], maps[0][:, both])  # not by itself


@pytest.mark.parametrize("dim", [1, 2, 3])
@torch.inference_mode()
def test_pixels_in_a_shared_window_are_equal(dim):
    sizes, frame, window = CASES[dim]
    anchored = ts.anchor(segmenter(dim), window, modulus=4)
    scene = torch.randn(3, *sizes)
    agreed = 0
    for corner in [(1,) * dim, (2,) + (0,) * (dim - 1), (3,) * dim]:
        both = [(0,) * dim, corner]
        maps, places = anchored(frames_of(scene, frame, both), return_anchor=True)
        assert places.shape == (2, 1, dim)
        seen = places[:, 0] + torch.tensor(both)
        if torch.equal(seen[0], seen[1]):
            first, second = (
                one[(slice(None), *[slice(a, a + window) for a in place[0].tolist()])]
                for one, place in zip(maps, places, strict=True)
            )
            assert torch.equal(first, second)
            agreed += 1
    assert agreed > 0
    assert torch.equal(
        ts.anchor(segmenter(dim), window, 4, maps=True).corners(frames_of(scene, frame, both)),
        places,
    )


@torch.inference_mode()
def test_no_frames_give_no_maps():
    for maps in (None, True):
        empty = ts.anchor(segmenter(), 24, maps=maps)(torch.zeros(0, 3, 70, 66))
        assert empty.shape == (0, 4, 70, 66)


@torch.inference_mode()
def test_every_pixel_comes_from_its_tile():
    model, frames = segmenter(), torch.randn(2, 3, 70, 66)
    anchored = ts.anchor(model, 24, modulus=4, maps=True)
    output = anchored(frames)
    corners, index = anchored.tiles(frames)
    assert output.shape == (2, 4, 70, 66)
    expected = torch.empty_like(output)
    for b, frame in enumerate(frames):
        for k, (y, x) in enumerate(corners[b].tolist()):
            tile = torch.zeros(4, 70, 66)
            tile[:, y : y + 24, x : x + 24] = model(frame[None, :, y : y + 24, x : x + 24])[0]
            expected[b] = torch.where(index[b] == k, tile, expected[b])
    torch.testing.assert_close(output, expected)


def test_neighbouring_tiles_meet_away_from_their_borders():
    anchored = ts.anchor(segmenter(), 24, modulus=4, maps=True)
    frames = torch.randn(1, 3, 70, 66)
    corners, index = anchored.tiles(frames)
    pixel = torch.stack(torch.meshgrid(torch.arange(70), torch.arange(66), indexing="ij"), -1)
    inside = pixel - corners[0][index[0]]
    assert inside.min() >= 0
    assert inside.max() < 24
    interior = inside[24:-24, 24:-24]
    assert interior.min() >= 6
    assert interior.max() < 18


@pytest.mark.parametrize("frame", [40, 41, 47, 70, 200])
def test_tiles_fit_into_frames_of_every_size(frame):
    (places,) = tiling(lines((frame,), (24,), (16,)))
    assert places.modulus == 16  # half a window, but a multiple of the modulus
    assert places.count == (frame - 23) // 16


@torch.inference_mode()
def test_maps_are_recognised_by_their_size_and_others_are_resized():
    frames = torch.randn(1, 3, 70, 66)
    whole = ts.anchor(segmenter(), 24)(frames)
    assert torch.equal(whole, ts.anchor(segmenter(), 24, maps=True)(frames))
    coarse = nn.Sequential(segmenter(), nn.AvgPool2d(4))
    assert ts.anchor(coarse, 24)(frames).shape == (1, 4, 6, 6)  # features of one window
    assert ts.anchor(coarse, 24, maps=True)(frames).shape == (1, 4, 70, 66)
    assert ts.anchor(segmenter(), 24, size=32)(frames).shape == (1, 4, 70, 66)
    labels = ts.anchor(lambda windows: segmenter()(windows).argmax(1), 24, maps=True)(frames)
    assert torch.equal(labels, whole.argmax(1))
    outputs = ts.anchor(lambda windows: {"out": segmenter()(windows)}, 24)(frames)
    assert torch.equal(outputs["out"], whole)

import copy
import pickle

import pytest
import torch
from torch import nn

import trueshift as ts


def network(dim=2, classes=5):
    torch.manual_seed(0)
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dim]
    pool = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[dim]
    layers = [conv(3, 8, 3, stride=2, padding=1), nn.ReLU(), pool(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 2**dim, classes)).eval()


def frames_of(scene, frame, corners):
    """Frames of a scene ``(C, *spatial)``, one for each corner."""
    cut = []
    for corner in corners:
        part = scene
        for axis, (start, length) in enumerate(zip(corner, frame, strict=True), start=1):
            part = part.narrow(axis, start, length)
        cut.append(part)
    return torch.stack(cut)


CASES = {1: ((90,), (64,), 32), 2: ((64, 70), (48, 52), 20), 3: ((40, 38, 36), (32, 30, 31), 16)}


@pytest.mark.parametrize("anchors", [1, 3])
@pytest.mark.parametrize("dim", [1, 2, 3])
@torch.inference_mode()
def test_frames_that_choose_the_same_windows_have_the_same_outputs(dim, anchors):
    sizes, frame, window = CASES[dim]
    anchored = ts.anchor(network(dim), window, modulus=14, anchors=anchors)
    scene = torch.randn(3, *sizes)
    corners = [(0,) * dim, (1,) * dim, (2,) * dim, (1,) + (0,) * (dim - 1), (3,) * dim]
    frames = frames_of(scene, frame, corners)
    rows = [anchored(one[None], return_anchor=True) for one in frames]
    chosen = [where + torch.tensor(at) for (_, where), at in zip(rows, corners, strict=True)]
    agreed = 0
    for i in range(len(rows)):
        for j in range(i):
            if torch.equal(chosen[i], chosen[j]):
                assert torch.equal(rows[i][0], rows[j][0])
                agreed += 1
            else:
                assert not torch.equal(rows[i][0], rows[j][0])
    assert agreed > 0
    assert rows[0][1].shape == (1, anchors, dim)
    assert rows[0][1].dtype == torch.int64


@torch.inference_mode()
def test_the_network_sees_the_windows_at_the_corners():
    model, frames = network(), torch.randn(2, 3, 48, 52)
    output, corners = ts.anchor(model, 20, modulus=7, anchors=4)(frames, return_anchor=True)
    for row, frame, places in zip(output, frames, corners.tolist(), strict=True):
        windows = torch.stack([frame[:, y : y + 20, x : x + 20] for y, x in places])
        torch.testing.assert_close(row, model(windows).mean(0))


@torch.inference_mode()
def test_the_mean_of_windows_does_not_depend_on_their_order():
    values = torch.randn(4, 6) * 10.0 ** torch.arange(-3, 3)
    frames = torch.randn(1, 3, 48, 52)
    means = [
        ts.anchor(lambda windows, order=order: values[order], 20, modulus=7, anchors=4)(frames)
        for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0])
    ]
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])


@torch.inference_mode()
def test_within_the_slack_nothing_changes_and_beyond_it_the_windows_jump():
    anchored = ts.anchor(network(), 20, modulus=8)
    scene = torch.randn(3, 80, 80) * 0.1
    scene[:, 33, 45] = 9.0  # the strongest point of every frame
    start = frames_of(scene, (48, 48), [(16, 16)])
    output, corners = anchored(start, return_anchor=True)
    (up, down), (left, right) = anchored.slack(start)[0].tolist()
    assert up + down == left + right == 7
    for dy in (-up, 0, down):  # content moves by dy: the frame moves by -dy
        for dx in (-left, 0, right):
            moved = frames_of(scene, (48, 48), [(16 - dy, 16 - dx)])
            assert torch.equal(anchored(moved), output)
    jumped = anchored.corners(frames_of(scene, (48, 48), [(16 - down - 1, 16)]))
    assert (jumped - corners)[0, 0].tolist() == [down + 1 - 8, 0]


@torch.inference_mode()
def test_the_slack_ends_where_the_strongest_point_leaves_the_frame():
    scene = torch.zeros(3, 48)
    scene[:, 48 - 5 - 3] = 9.0  # scored up to pixel 42, compared up to 41: one more to go
    slack = ts.anchor(network(1), 20, modulus=20)
    (lower, higher) = slack.slack(scene[None])[0, 0].tolist()
    assert higher == 1
    assert lower == (48 - 5 - 3 - 6) % 20


@torch.inference_mode()
def test_the_margin_is_what_noise_must_reach():
    scores = torch.tensor([[1.0, 0.2, 4.0, 3.0, 0, 0, 0, 0, 0, 0, 3.9], [0.0] * 11])
    anchored = ts.anchor(network(1), 20, modulus=8, score=lambda frames: scores)
    # Position 10 is a whole modulus from position 2: it would choose the same windows.
    assert anchored.margin(torch.zeros(2, 3, 48)).tolist() == [0.25, 0.0]


@torch.inference_mode()
def test_noise_below_half_the_margin_changes_no_window():
    scores = torch.rand(40, 46, 46) * torch.rand(40, 46, 46)  # the third is weaker than the first
    frames, noise = torch.zeros(40, 3, 48, 48), 2 * torch.rand(30, 40, 46, 46) - 1

    def windows(scores):
        anchored = ts.anchor(network(), 20, modulus=16, anchors=3, score=lambda frames: scores)
        return anchored.corners(frames), anchored.margin(frames)

    corners, margin = windows(scores)
    largest = 0.49 * margin * scores[:, 1:-1, 1:-1].amax((1, 2))
    for one in noise.sign():
        noisy = scores + one * largest[:, None, None]
        assert torch.equal(windows(noisy)[0], corners)


@torch.inference_mode()
def test_frames_with_fewer_points_than_windows_see_the_strongest_again():
    scores = torch.zeros(2, 42, 46)
    scores[0, 6, 10] = 2.0  # at 5 and 9 of the points that count
    scores[0, 31, 21] = 1.0
    anchored = ts.anchor(network(), 20, modulus=8, anchors=3, score=lambda frames: scores)
    frames = torch.randn(2, 3, 48, 52)
    strong, weak, again = anchored.corners(frames)[0].tolist()
    assert strong == again == [14 - 4 + 5, 16 - 4 + 1]  # the centre, half a modulus, the residue
    assert weak == [14 - 4 + 30 % 8, 16 - 4 + 20 % 8]
    assert anchored.corners(frames)[1].tolist() == [[14, 16]] * 3
    assert anchored.slack(frames).tolist() == [[[5, 1], [1, 3]], [[0, 0], [0, 0]]]
    one = ts.anchor(network(), 20, modulus=8, score=lambda frames: scores)
    three = network()(
        torch.stack([frames[0, :, y : y + 20, x : x + 20] for y, x in (strong, weak)])
    )
    torch.testing.assert_close(anchored(frames)[0], (2 * three[0] + three[1]) / 3)
    torch.testing.assert_close(one(frames)[1], anchored(frames)[1])


@torch.inference_mode()
def test_frames_without_a_point_keep_the_window_at_the_centre():
    anchored = ts.anchor(network(), 20)
    frames = torch.stack([torch.full((3, 48, 52), 0.3), torch.full((3, 48, 52), torch.nan)])
    assert anchored.corners(frames)[:, 0].tolist() == [[14, 16], [14, 16]]
    assert anchored.slack(frames).tolist() == [[[0, 0], [0, 0]]] * 2
    assert anchored.margin(frames).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("anchors", [1, 2])
@pytest.mark.parametrize("frame", [48, 57])  # three times the modulus, and not a multiple
@pytest.mark.parametrize("move", [(1, 1), (4, -4), (5, 0), (16, 16)])
@torch.inference_mode()
def test_the_rate_of_agreement_is_the_promised_probability(move, frame, anchors):
    """Scores without favourite places satisfy the assumption, but for points that keep apart."""
    anchored = ts.anchor(network(), 32, 16, anchors=anchors, score=lambda frames: frames[:, 0])
    trials, (dy, dx) = 3000, (16 + move[0], 16 + move[1])
    scene = torch.rand(trials, 1, frame + 32, frame + 32)
    first = anchored.corners(scene[..., 16 : 16 + frame, 16 : 16 + frame])
    second = anchored.corners(scene[..., dy : dy + frame, dx : dx + frame]) + torch.tensor(move)
    rate = (first == second).flatten(1).all(1).double().mean().item()
    tolerance = 4 * (0.25 / trials) ** 0.5 + 0.03 * (anchors - 1)
    assert abs(rate - anchored.agreement(frame, move)) < tolerance


@torch.inference_mode()
def test_windows_are_resized_to_the_size_of_the_network():
    sizes = []
    anchored = ts.anchor(
        lambda windows: sizes.append(windows.shape) or windows.mean((1, 2, 3)), 20, size=(28, 24)
    )
    assert anchored(torch.randn(2, 3, 48, 52)).shape == (2,)
    assert sizes == [(2, 3, 28, 24)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_windows_of_every_type_are_resized(dtype):
    frames, seen = (torch.rand(1, 3, 48, 52) * 200).to(dtype), []
    for one in (frames, frames.double()):
        ts.anchor(lambda windows: seen.append(windows) or windows, 20, size=28, maps=False)(one)
    assert seen[0].dtype == dtype
    torch.testing.assert_close(seen[0].double(), seen[1], atol=0.6, rtol=0)


@torch.inference_mode()
def test_every_call_has_the_size_of_the_batch():
    sizes, frames = [], torch.randn(5, 3, 48, 52)

    def recorded(windows):
        sizes.append(len(windows))
        return {
            "mean": windows.mean((2, 3)),
            "both": (windows.amax((2, 3)), windows.sum((1, 2, 3))),
        }

    output = ts.anchor(recorded, 20, batch=3)(frames)
    assert sizes == [3, 3]
    whole = ts.anchor(recorded, 20)(frames)
    assert torch.equal(output["mean"], whole["mean"])
    assert torch.equal(output["both"][1], whole["both"][1])


@pytest.mark.parametrize(
    ("frames", "anchors", "calls"),
    [(1, 4, [4]), (2, 4, [8]), (3, 4, [6, 6]), (5, 2, [5, 5]), (9, 1, [9]), (10, 3, [10] * 3)],
)
@torch.inference_mode()
def test_windows_go_in_calls_of_one_size_about_as_large_as_the_frames(frames, anchors, calls):
    sizes, frames = [], torch.randn(frames, 3, 48, 52)

    def recorded(windows):
        sizes.append(len(windows))
        return windows.amax((2, 3))

    output = ts.anchor(recorded, 20, modulus=7, anchors=anchors)(frames)
    assert sizes == calls
    one_by_one = ts.anchor(recorded, 20, modulus=7, anchors=anchors, batch=1)(frames)
    assert torch.equal(output, one_by_one)


@torch.inference_mode()
def test_no_frames_give_no_outputs():
    output, corners = ts.anchor(network(), 20)(torch.zeros(0, 3, 48, 52), return_anchor=True)
    assert output.shape == (0, 5)
    assert corners.shape == (0, 1, 2)


def test_it_is_a_module_like_any():
    model = network()
    anchored = ts.anchor(model, 20)
    frames = torch.randn(2, 3, 48, 52, requires_grad=True)
    anchored(frames).sum().backward()
    assert frames.grad.abs().sum() > 0
    assert next(name for name, _ in anchored.named_parameters()) == "network.0.weight"
    for twin in (copy.deepcopy(anchored), pickle.loads(pickle.dumps(anchored))):
        assert torch.equal(twin(frames), anchored(frames))
    assert "window=20" in repr(anchored)


def test_the_window_is_known_where_the_network_states_its_input():
    model = network()
    model.pretrained_cfg = {"input_size": (3, 20, 24)}
    assert ts.anchor(model).window == (20, 24)
    model = network()
    model.image_size = 20
    assert ts.anchor(model).window == (20, 20)


@pytest.mark.parametrize("dynamic", [True, False])
@torch.inference_mode()
def test_sessions_of_onnxruntime(tmp_path, dynamic):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, frames = network(), torch.randn(3, 3, 48, 52)
    shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamic else {}
    path = str(tmp_path / "net.onnx")
    torch.onnx.export(
        model, (torch.randn(2, 3, 20, 20),), path, dynamo=True, verbose=False, **shapes
    )
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    anchored = ts.anchor(session)
    output, corners = anchored(frames, return_anchor=True)
    expected, same = ts.anchor(model, 20)(frames, return_anchor=True)
    assert torch.equal(corners, same)
    torch.testing.assert_close(output, expected)

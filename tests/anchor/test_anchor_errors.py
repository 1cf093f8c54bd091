import pytest
import torch
from test_anchor import network

import trueshift as ts

FRAMES = torch.zeros(2, 3, 48, 52)


@pytest.mark.parametrize(
    ("arguments", "frames", "message"),
    [
        ({"window": 50}, FRAMES, r"windows of \(50, 50\) do not fit into frames of \(48, 52\)"),
        (
            {"window": 40, "modulus": 16},
            FRAMES,
            r"\(9, 13\) places .* fewer than the modulus \(16, 16\)\. Pass a smaller modulus, or"
            r" frames of at least \(55, 55\)",
        ),
        ({"window": (20,)}, FRAMES, r"window \(20,\) has 1 entries for frames with 2"),
        ({"window": (20, 20)}, FRAMES[0], r"has 2 entries .* with 1 .* need a batch axis"),
        ({"window": 20, "modulus": (4, 4, 4)}, FRAMES, "modulus .* has 3 entries"),
        ({"window": 20}, torch.zeros(48, 52), "must have 3 or 4 or 5 dimensions"),
        ({"window": 4, "modulus": 1}, torch.zeros(1, 3, 10, 10), "frames of at least 13 pixels"),
        ({"window": 20, "score": lambda x: x}, FRAMES, "the score must have shape"),
        ({"window": 20, "score": lambda x: x[:1, 0]}, FRAMES, "the score must have shape"),
        ({"window": 8, "modulus": 16, "maps": True}, FRAMES, "leave gaps"),
        ({"window": 20, "maps": True}, FRAMES, r"maps must have shape .* got \(18, 5\)"),
    ],
)
def test_frames_that_cannot_be_anchored(arguments, frames, message):
    with pytest.raises(ValueError, match=f"anchor: .*{message}"):
        ts.anchor(network(), **arguments)(frames)


@pytest.mark.parametrize("frames", [[FRAMES[0], FRAMES[0, :, :40]], FRAMES.numpy()])
def test_frames_must_be_one_tensor(frames):
    several = (
        r"got 2 frames of shapes \[\(3, 40, 52\), \(3, 48, 52\)\]\. Stack|torch.Tensor, got nd"
    )
    with pytest.raises(TypeError, match=several):
        ts.anchor(network(), 20)(frames)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "does not state its input size. Pass window"),
        ({"size": 24}, ValueError, "does not state its input size. Pass window"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"window": "20"}, TypeError, "window must be an integer, got '20'"),
        ({"window": (20, 2.5)}, TypeError, "window must be an integer, got 2.5"),
        ({"window": 20, "modulus": -1}, ValueError, "modulus must be at least 1"),
        ({"window": 20, "anchors": 0}, ValueError, "anchors must be at least 1"),
        ({"window": 20, "batch": 0}, ValueError, "batch must be at least 1"),
        ({"window": 20, "score": 3}, TypeError, "score must be a module, a function"),
        ({"window": 20, "maps": True, "anchors": 4}, ValueError, "each pixel from one window"),
    ],
)
def test_arguments_that_make_no_sense(arguments, error, message):
    with pytest.raises(error, match=f"anchor: .*{message}"):
        ts.anchor(network(), **arguments)


@pytest.mark.parametrize(
    ("output", "anchors", "error", "message"),
    [
        (lambda x: x.mean(), 1, ValueError, r"one row for each of 2 windows, got shape \(\)"),
        (lambda x: x[:1, 0, 0], 1, ValueError, r"got shape \(1, 20\)"),
        (lambda x: {"a": 3}, 1, TypeError, "must return tensors, got int"),
        (
            lambda x: x.amax((2, 3)).argmax(1),
            4,
            TypeError,
            "labels of 4 windows cannot be averaged",
        ),
        (lambda x: x, 4, ValueError, "returns maps, .* got anchors=4"),
    ],
)
def test_outputs_that_cannot_be_used(output, anchors, error, message):
    with pytest.raises(error, match=f"anchor: .*{message}"):
        ts.anchor(output, 20, modulus=7, anchors=anchors)(FRAMES)


def test_labels_at_other_sizes_cannot_be_resized():
    with pytest.raises(ValueError, match="maps of labels must have the size of the windows"):
        ts.anchor(lambda x: x[:, :1, ::2, ::2].long(), 20, maps=True)(FRAMES)


def test_networks_must_be_callable_with_one_input():
    with pytest.raises(TypeError, match="network must be a module, a function"):
        ts.anchor("net.onnx", 20)

    class Session:
        run = None

        def get_inputs(self):
            return [type("Input", (), {"name": name}) for name in "ab"]

    with pytest.raises(ValueError, match=r"one input, got 2: a, b\. Pass a function"):
        ts.anchor(Session(), 20)


def test_frames_as_large_as_the_window_leave_no_choice():
    anchored = ts.anchor(lambda x: x.mean((1, 2, 3)), 20)
    with pytest.warns(UserWarning, match="leave no choice of a window of 20. Pass larger frames"):
        anchored(torch.rand(1, 3, 20, 20))

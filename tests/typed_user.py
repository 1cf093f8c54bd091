"""What a user's type checker sees: ``make lint`` and ``.ci/run`` run mypy on it, strictly."""

from typing import assert_type

import torch
from torch import Tensor, nn

import trueshift as ts


def user() -> None:
    spec: ts.Sampling = ts.Sampling("lps", antialias="tri3", hidden="eighth")
    down = ts.LPD(8, antialias="tri3")
    ts.LPU(8)
    x = torch.randn(2, 8, 12, 8)
    _y, _phase = down(x, return_phase=True)
    assert_type(ts.shifts.circular_shift(x, 1, 2), Tensor)
    assert_type(ts.functional.polyphase_split(x, 2), Tensor)

    net = ts.models.resnet18(spec, num_classes=10, stem="cifar").eval()
    ts.set_tau(net, 0.5)
    ts.save(net, "net.safetensors")
    assert_type(ts.load("net.safetensors"), nn.Module)
    result = ts.audit(net, torch.randn(4, 3, 32, 32))
    assert_type(result.consistency, float)
    ts.convert(nn.Conv2d(3, 4, 3, 2), spec, torch.randn(1, 3, 8, 8))
    ts.optimize(net, torch.randn(1, 3, 32, 32))

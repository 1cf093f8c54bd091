import torch
from torch import nn

import trueshift as ts


class Shared(nn.Module):
    """The first map is read by its norm only, the second one by two."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.second, self.other = nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4)
        for norm in (self.norm, self.other):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = self.second(self.norm(self.first(x)).relu())
        return self.other(y) * y


def test_norms_overwrite_maps_that_nobody_else_reads():
    new = ts.convert(Shared().eval(), "aps", torch.randn(1, 3, 8, 8))
    assert new.code.count("normalize(") == 1
    x = torch.randn(2, 3, 8, 12)
    kept = new(x).detach()
    with torch.no_grad():
        assert torch.equal(new(x), kept)
        assert torch.equal(new(x.roll((2, -4), (2, 3))), kept.roll((1, -2), (2, 3)))


def test_hooks_of_convolutions_see_what_they_made():
    new = ts.convert(Shared().eval(), "stride", torch.randn(1, 3, 8, 8))
    x, seen = torch.randn(1, 3, 8, 8), []
    new.sampling.first.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        new(x)
        expected = new.sampling.first(x, None, new.first.weight, new.first.bias)
    assert torch.equal(seen[0], expected)

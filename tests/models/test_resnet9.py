import pytest
import torch
from helpers import all_shifts
from networks import trained

import trueshift as ts
from trueshift.shifts import circular_shift


def different(spec, num=32):
    torch.manual_seed(0)
    model = trained(ts.models.resnet9(spec, widths=(8, 16, 24), stem=8))
    x = torch.randn(1, 3, 16, 16)
    moved = torch.cat(
        [circular_shift(x, *shift) for shift in list(all_shifts((16, 16)))[::7][:num]]
    )
    with torch.inference_mode():
        out = model(moved)
    return sum(not torch.equal(row, out[0]) for row in out)


@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize("method", ["aps", "lps"])
def test_is_bitwise_invariant(method, select):
    assert different(ts.Sampling(method, select_from=select, hidden="eighth")) == 0


def test_with_a_filter_is_bitwise_invariant():
    assert different(ts.Sampling("lps", "adapt3", hidden="eighth", groups=2)) == 0


def test_plain_striding_is_not():
    assert different(ts.Sampling("stride")) > 10


def test_plain_striding_keeps_the_first_component():
    torch.manual_seed(0)
    plain = trained(ts.models.resnet9(ts.Sampling("stride")))
    dense = ts.models.resnet9(ts.Sampling("lps", hidden=1)).eval()
    dense.load_state_dict(plain.state_dict(), strict=False)
    for stage in dense.stages:
        stage.down = ts.Sampling("stride").down(stage.conv.out_channels)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(plain(x), dense(x))


def test_features_and_sizes():
    model = ts.models.resnet9(ts.Sampling("aps"), widths=(8, 16), residual=(False, False)).eval()
    features = model.features(torch.randn(2, 3, 8, 12))
    assert [tuple(f.x.shape) for f in features] == [(2, 8, 4, 6), (2, 16, 2, 3)]
    assert model.required_multiple == 4
    with pytest.raises(ValueError, match="multiple"):
        model(torch.randn(1, 3, 10, 12))


def test_bad_arguments():
    with pytest.raises(ValueError, match="one value per stage"):
        ts.models.resnet9(ts.Sampling("aps"), widths=(8, 16), residual=(False,))
    with pytest.raises(ValueError, match="dim=1"):
        ts.models.resnet9(ts.Sampling("aps", dim=1))

import pytest
import torch

import trueshift as ts
from trueshift.report.norms import compare_with_norms


def network(spec):
    torch.manual_seed(0)
    return ts.models.resnet9(spec, widths=(8, 16), residual=(False, False)).eval()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 3, 8, 8, generator=generator), torch.arange(8) % 10) for _ in range(3)]


@pytest.mark.parametrize("select", ["output", "input"])
def test_counts_choices_and_replaces_selectors(select):
    net = network(ts.Sampling("lps", hidden=4, select=select))
    aps = network(ts.Sampling("aps", select=select))
    aps.load_state_dict(net.state_dict(), strict=False)
    found = compare_with_norms(net, batches())
    assert found.num_images == 24
    right = sum(int((aps(x).argmax(1) == y).sum()) for x, y in batches())
    assert found.norm_accuracy == right / 24
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in batches())
    assert found.accuracy == right / 24
    assert list(found.same_choice) == ["stages.0.down", "stages.1.down"]
    assert 0 < found.mean_same_choice < 1
    assert isinstance(net.stages[0].down.selector, ts.ConvSelector)  # left as it was


def test_first_layer_is_counted_as_its_phases_say():
    net = network(ts.Sampling("lps", hidden=4))
    x = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        before = net.stages[0].norm(net.stages[0].conv(net.stem(x))).relu()
    phase = net.features(x)[0].steps[0].phase
    largest = ts.NormSelector(2).eval().choose(before, 2)
    found = compare_with_norms(net, [(x, torch.zeros(16, dtype=torch.int64))])
    assert found.same_choice["stages.0.down"] == float((phase == largest).double().mean())


def test_a_layer_that_looks_at_a_part_is_compared_on_the_map_it_samples():
    torch.manual_seed(0)
    spec = ts.Sampling("lps", hidden=4, select="input")
    net = ts.models.resnet(spec, (1, 1), (8, 16), num_classes=10).eval()
    found = compare_with_norms(net, batches())
    assert list(found.same_choice) == ["conv1_down", "maxpool_down", "layer2.0.down"]
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in batches())
    assert found.accuracy == right / 24


def test_a_network_without_learned_selectors():
    with pytest.raises(ValueError, match="no learned selector"):
        compare_with_norms(network(ts.Sampling("aps")), batches())
    with pytest.raises(ValueError, match="no images"):
        compare_with_norms(network(ts.Sampling("lps")), [])

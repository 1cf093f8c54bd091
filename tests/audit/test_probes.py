import pytest
import torch

import trueshift as ts
from trueshift.audit.probes import observe_choices, selecting_layers, watch_layer


def unet(method="lps"):
    spec = ts.Sampling(method, "tri3" if method == "lps" else None, hidden=2)
    torch.manual_seed(0)
    return ts.models.unet(spec, num_classes=3, widths=(4, 8, 8)).eval()


@pytest.mark.parametrize("method", ["lps", "aps"])
def test_what_a_layer_saw_and_chose(method, generator):
    model, x = unet(method), torch.randn(2, 3, 16, 16, generator=generator)
    layers = selecting_layers(model)
    assert list(layers) == ["downs.0.down", "downs.1.down"]
    name, seen = watch_layer(model, None, x)
    assert name == "downs.1.down"
    assert seen.x.shape == (2, 8, 8, 8)
    with torch.no_grad():
        assert torch.equal(seen.phase, model.features(x)[-1].steps[1].phase)
    assert torch.equal(seen.phase, layers[name].selector.choose(seen.x, (2, 2)))


def test_layers_that_are_not_there():
    with pytest.raises(ValueError, match=r"no layer 'x' .* downs.0.down, downs.1.down"):
        watch_layer(unet(), "x", torch.ones(1, 3, 8, 8))
    with pytest.raises(ValueError, match="not a network of method lps or aps"):
        watch_layer(unet("stride"), None, torch.ones(1, 3, 8, 8))


@pytest.mark.parametrize("select", ["output", "input"])
def test_a_layer_is_watched_wherever_it_selects_from(select):
    torch.manual_seed(0)
    net = ts.models.resnet(ts.Sampling("lps", select_from=select), (1, 1), (8, 16)).eval()
    x = torch.randn(4, 3, 32, 32)
    for k, name in enumerate(("conv1_down", "maxpool_down", "layer2.0.down")):
        _, seen = watch_layer(net, name, x)
        with torch.no_grad():
            assert torch.equal(seen.phase, net.features(x)[-1].steps[k].phase)
        assert seen.sampled.shape[2:] == seen.x.shape[2:]


def test_observing_changes_no_bit_and_leaves_nothing_behind():
    torch.manual_seed(0)
    net = ts.models.resnet18(ts.Sampling("lps", "tri3", hidden="eighth"), num_classes=5).eval()
    x, names = torch.randn(4, 3, 32, 32), []
    with torch.no_grad():
        before = net(x)
        with observe_choices(selecting_layers(net), lambda name, _: names.append(name)):
            assert torch.equal(net(x), before)
        net(x)
    assert names == list(selecting_layers(net))
    assert not any({"choose", "scores"} & vars(module).keys() for module in net.modules())

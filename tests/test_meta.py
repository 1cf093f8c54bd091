"""The path of an accelerator, without one: on the meta device every read of a value raises."""

import pytest
import torch
from torch import nn

import trueshift as ts

SPECS = {
    "stride": ts.Sampling("stride"),
    "lpf": ts.Sampling("stride", "tri3"),
    "ddac": ts.Sampling("stride", "adapt3"),
    "aps": ts.Sampling("aps", "tri3"),
    "aps random": ts.Sampling("aps", "tri3", train_rule="random"),
    "aps from input": ts.Sampling("aps", select_from="input"),
    "lps": ts.Sampling("lps", "tri3"),
    "lps straight": ts.Sampling("lps", train_rule="straight"),
    "lps from input": ts.Sampling("lps", "tri3", select_from="input"),
    "lps softmax": ts.Sampling("lps", "adapt3", train_rule="softmax", test_rule="softmax"),
    "lps zeros": ts.Sampling("lps", "tri3", padding_mode="zeros"),
}
NETWORKS = {
    "resnet18": lambda spec: ts.models.resnet18(spec, num_classes=4),
    "resnet50": lambda spec: ts.models.resnet50(spec, num_classes=4),
    "resnet9": ts.models.resnet9,
    "deeplab": lambda spec: ts.models.deeplabv3plus_resnet18(spec, num_classes=4),
    "unet": lambda spec: ts.models.unet(spec, num_classes=4, widths=(8, 16, 16)),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("spec", SPECS)
def test_no_network_reads_a_value(spec, name, training):
    with torch.device("meta"):
        model = NETWORKS[name](SPECS[spec]).train(training)
        x = torch.empty(2, 3, 64, 64)
    y = model(x)
    assert y.device.type == "meta"
    assert y.shape[:2] == (2, 10 if name == "resnet9" else 4)
    if training:
        y.sum().backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", ["aps", "lps"])
def test_no_converted_network_reads_a_value(method):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)
    )
    new = ts.convert(net, method, torch.randn(1, 3, 16, 16))
    for training in (False, True):
        y = new.to("meta").train(training)(torch.empty(2, 3, 16, 16, device="meta"))
        assert y.shape == (2, 4, 4, 4)

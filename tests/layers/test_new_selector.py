"""A selector and a filter of one's own: one class and one entry each, used everywhere."""

import dataclasses
import json

import pytest
import torch
from helpers import all_shifts
from torch import Tensor, nn

import trueshift as ts
from trueshift.cli.main import main
from trueshift.exact import order_free_mean
from trueshift.layers.filters import FILTERS
from trueshift.layers.selectors import METHODS, Selector
from trueshift.shifts import circular_shift


class VarianceSelector(Selector):
    """The component of the largest variance."""

    def logits(self, x: Tensor, stride: tuple[int, ...]) -> Tensor:
        components = ts.functional.polyphase_split(x, stride).flatten(2)
        mean = order_free_mean(components, 2)
        return order_free_mean(components.double().square(), 2) - mean.square()


class Binary(nn.Module):
    """The mean of a pixel and its right neighbour along the last axis, wrapping."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + x.roll(-1, -1)) / 2


@pytest.fixture(autouse=True)
def _entries(monkeypatch):
    monkeypatch.setitem(METHODS, "variance", VarianceSelector)
    monkeypatch.setitem(FILTERS, "binary", lambda channels, mode, dim, groups: Binary())


def every_shift(x):
    return torch.cat([circular_shift(x, *shift) for shift in all_shifts(x.shape[2:])])


def assert_invariant(network, x):
    with torch.inference_mode():
        y = network(every_shift(x))
    assert torch.equal(y, y[:1].expand_as(y))


SPECS = pytest.mark.parametrize(
    "spec", [("variance", None), ("variance", "binary"), ("lps", "binary"), ("variance", "tri3")]
)


def test_the_component_of_the_largest_variance_is_kept():
    x = torch.randn(2, 3, 8, 8)
    x[0, :, 1::2, 0::2] *= 3
    x[1, :, 0::2, 1::2] *= 3
    y, phase = ts.PolyphaseDown(VarianceSelector())(x, return_phase=True)
    assert phase.tolist() == [2, 1]
    assert torch.equal(y[0], x[0, :, 1::2, 0::2])


@SPECS
@pytest.mark.parametrize("select_from", ["output", "input"])
def test_in_a_network_and_its_summary(spec, select_from):
    method, antialias = spec
    sampling = ts.Sampling(method, antialias, hidden=2, select_from=select_from)
    net = ts.models.resnet18(sampling, num_classes=3, stem="cifar").eval()
    assert_invariant(net, torch.randn(1, 3, 8, 8))
    sites = [site for site in ts.summary(net) if site.kind == "down"]
    assert [site.method for site in sites] == [method] * 3
    shown = {"binary": "Binary"}.get(antialias, antialias)
    assert [site.antialias for site in sites] == [shown] * 3


@SPECS
def test_down_and_up_again(spec):
    sampling = ts.Sampling(*spec, hidden=2)
    down, up = sampling.down(3).eval(), sampling.up(3)
    images = every_shift(torch.randn(1, 3, 8, 6))
    u = up(*down(images, return_phase=True))
    assert torch.equal(u, every_shift(u[:1]))


@SPECS
def test_in_a_converted_and_audited_network(spec):
    convs = [nn.Conv2d(c, d, 3, s, 1) for c, d, s in ((3, 6, 1), (6, 6, 2), (6, 8, 2))]
    layers = [layer for conv in convs for layer in (conv, nn.ReLU())]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    new = ts.convert(net, ts.Sampling(*spec, hidden=2), torch.randn(1, 3, 8, 8)).eval()
    assert_invariant(new, torch.randn(1, 3, 8, 8))
    assert spec[0] in {site.method for site in ts.summary(new)}
    result = ts.audit(new, torch.randn(4, 3, 8, 8))
    circular = next(m for m in result.measurements if m.kind == "circular")
    assert circular.bitwise_share == 1
    assert len(result.margins) == sum(site.kind == "down" for site in ts.summary(new))


def test_the_spec_survives_a_file(tmp_path):
    net = ts.models.resnet18(ts.Sampling("variance", "binary"), num_classes=3, stem="cifar").eval()
    ts.save(net, tmp_path / "net.safetensors")
    other, x = ts.load(tmp_path / "net.safetensors").eval(), torch.randn(2, 3, 8, 8)
    assert torch.equal(other(x), net(x))


@SPECS
def test_in_a_table_of_results(spec, tmp_path, capsys):
    sampling = dataclasses.asdict(ts.Sampling(*spec))
    row = {"data": "cifar10", "network": "resnet18", "network_options": {}, "spec": sampling}
    metrics = {"accuracy": 0.5, "circular_consistency": 1.0}
    results = {"row": row, "metrics": metrics, "time": {"inference": None}}
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "results.json").write_text(json.dumps(results))
    assert main(["table", "cifar10", str(tmp_path)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    method = {"lps": "LPS"}.get(spec[0], spec[0])
    antialias = {None: "-", "tri3": "Tri-3"}.get(spec[1], spec[1])
    cells = "50.00 ± 0.00 | - | 100.00 ± 0.00 | - | 2"
    assert last == f"| {method} | {antialias} | ResNet-18 | {cells} |"

"""Where the time of a network goes."""

import pytest

from benchmarks.parts import measure_operations, measure_parts, table
from trueshift.bench import Setting


@pytest.mark.parametrize("network", ["resnet18", "deeplab-resnet18"])
def test_parts_add_up_to_the_whole(network):
    setting = Setting(network, repeats=1, batch=2, size=32)
    times = measure_parts(setting, ["stride", "lps-input"])
    for parts in times.values():
        selectors, whole = parts.pop("of it, selectors", 0.0), parts.pop("whole")
        assert sum(parts.values()) == pytest.approx(whole)
        assert whole > selectors
        assert min(parts.values()) > 0
        assert {"layer1", "layer4", "stem and rest"} <= set(parts)
        assert ("classifier" in parts) == (network == "deeplab-resnet18")
    assert "of it, selectors" not in times["stride"]


def test_operations_are_counted_and_sorted():
    times = measure_operations(Setting("resnet18", repeats=1, batch=2, size=32), ["stride"])
    assert times["stride"]["aten::mkldnn_convolution"] > 0
    head, rule, *lines = table(times, most=3).splitlines()
    assert head == "| ms | stride |"
    assert rule == "| --- | --- |"
    taken = [float(line.split("|")[2]) for line in lines]
    assert len(taken) == 3
    assert taken == sorted(taken, reverse=True)

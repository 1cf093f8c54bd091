import sys

import pytest
import torch

import trueshift as ts
from trueshift.bench import (
    NETWORKS,
    ROWS,
    Bench,
    Measured,
    NotAvailable,
    Setting,
    Workload,
    build,
    measure,
)
from trueshift.bench.meters import flops_per_image, interleaved, machine, peak_mib

TINY = Workload(
    "Tiny", "resnet", 2, 16, 3, "same", {"depths": (1, 1), "widths": (4, 8), "stem": "cifar"}
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", TINY)
    return Setting("tiny", repeats=2)


def test_runs_take_turns_and_warm_up():
    order = []
    runs = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timed = list(interleaved(runs, repeats=2, warmup=1))
    assert order == ["a", "b"] * 3
    assert [name for name, _ in timed] == order
    assert [elapsed is None for _, elapsed in timed] == [True, True, False, False, False, False]


def test_peak_memory_counts_what_is_held_at_once():
    def run():
        first = torch.ones(2**18)  # 1 MiB
        second = first + 1
        del first
        return second + 1

    assert peak_mib(run) == pytest.approx(2, abs=0.1)


def test_flops_of_one_convolution():
    conv = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
    assert flops_per_image(conv, torch.randn(2, 3, 6, 4)) == 2 * 3 * 9 * 8 * 6 * 4


def test_machine_says_what_times_depend_on():
    told = machine()
    assert told["threads"] == torch.get_num_threads()
    assert told["torch"] == torch.__version__
    assert told["cpu"]


def test_the_floor_has_the_same_convolutions():
    x = torch.randn(2, 3, 16, 16)
    floor, aps = build(TINY, ROWS["floor"]).eval(), build(TINY, ROWS["aps"]).eval()
    assert flops_per_image(floor, x) == flops_per_image(aps, x)
    down = [m for m in floor.modules() if isinstance(m, ts.PolyphaseDown)]
    assert down
    assert all(isinstance(layer.selector, ts.FixedSelector) for layer in down)
    assert floor(x).shape == aps(x).shape


def test_measures_every_row(tiny):
    bench = Bench(tiny)
    measure(bench, ["stride", "floor", "lps-input", "antialiased-cnns"])
    assert bench.complete
    assert list(bench.rows) == ["stride", "floor", "lps-input"]
    assert bench.missing == {"antialiased-cnns": "antialiased-cnns has no Tiny"}
    for row in bench.rows.values():
        assert {mode: len(times) for mode, times in row.times.items()} == {
            "eval": 2,
            "optimized": 2,
            "train": 2,
        }
        assert row.peak_mib["train"] > row.peak_mib["eval"] > 0
    lps, stride = bench.rows["lps-input"], bench.rows["stride"]
    assert lps.parameters > stride.parameters
    assert lps.flops > stride.flops
    ratio = bench.memory_ratio("lps-input", "stride", "eval")
    assert ratio == lps.peak_mib["eval"] / stride.peak_mib["eval"]
    assert bench.memory_ratio("lps-input", "torchvision", "eval") is None
    assert bench.time_ratio("lps-input", "torchvision", "eval") is None


def test_time_ratios_are_taken_within_rounds():
    bench = Bench(Setting("resnet18"))
    for key, times in {"stride": [10.0, 30.0, 20.0], "lps": [11.0, 33.0, 40.0]}.items():
        bench.rows[key] = Measured(1, 1, {"eval": times, "train": []})
    assert bench.time_ratio("lps", "stride", "eval") == pytest.approx(1.1)  # of medians: 33 / 20
    assert bench.time_ratio("lps", "stride", "train") is None


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_half_precision_and_layouts(tiny, layout):
    setting = Setting("tiny", layout, "bfloat16", repeats=1, measures=("eval", "train"))
    bench = Bench(setting)
    measure(bench, ["lps-tri3"])
    assert bench.complete
    assert bench.rows["lps-tri3"].peak_mib == {}
    assert bench.rows["lps-tri3"].median_ms("train") > 0


def test_an_interruption_leaves_what_is_known(tiny):
    def tell(text):
        if text.startswith("train, run 1"):
            raise KeyboardInterrupt

    bench = Bench(tiny)
    with pytest.raises(KeyboardInterrupt):
        measure(bench, ["stride", "aps"], tell)
    assert not bench.complete
    assert len(bench.rows["aps"].times["eval"]) == 2
    assert len(bench.rows["stride"].times["train"]) == 1
    assert bench.rows["aps"].median_ms("train") is None


def test_training_steps_leave_the_weights_alone(tiny, monkeypatch):
    made = []

    def remember(network, row):
        made.append(build(network, row))
        return made[-1]

    monkeypatch.setattr("trueshift.bench.run.build", remember)
    torch.manual_seed(0)
    fresh = TINY.build(ROWS["stride"].source)
    measure(Bench(tiny), ["stride"])
    for ours, expected in zip(made[0].parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_says_what_is_not_there(monkeypatch):
    deeplab, resnet = NETWORKS["deeplab-resnet18"], NETWORKS["resnet18"]
    with pytest.raises(NotAvailable, match="torchvision has no DeepLabV3"):
        build(deeplab, ROWS["torchvision"])
    monkeypatch.setitem(sys.modules, "antialiased_cnns", None)
    with pytest.raises(NotAvailable, match=r"not installed \(pip install antialiased-cnns\)"):
        build(resnet, ROWS["antialiased-cnns"])


@pytest.mark.parametrize("row", ["torchvision", "timm-blur"])
def test_other_packages_have_the_same_trunk(row):
    with torch.device("meta"):
        other = build(NETWORKS["resnet18"], ROWS[row])
        ours = build(NETWORKS["resnet18"], ROWS["lpf-tri3"])
    count = [sum(p.numel() for p in model.parameters()) for model in (other, ours)]
    assert count[0] == count[1]


def test_torchvision_with_a_cifar_stem_is_our_plain_network():
    with torch.device("meta"):
        other = build(NETWORKS["resnet18-cifar"], ROWS["torchvision"])
        ours = build(NETWORKS["resnet18-cifar"], ROWS["stride"])
    shapes = [[p.shape for p in model.parameters()] for model in (other, ours)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"network": "resnet19"}, "resnet19"),
        ({"layout": "nhwc"}, "layout"),
        ({"dtype": "float16"}, "dtype"),
        ({"repeats": 0}, "repeats"),
        ({"measures": ("speed",)}, "measure"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        Setting(**{"network": "resnet18", **wrong})


def test_unknown_row(tiny):
    with pytest.raises(ValueError, match="row"):
        measure(Bench(tiny), ["lsp"])

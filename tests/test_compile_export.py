"""Compiled and exported networks compute what eager ones do, and keep the guarantee."""

import shutil

import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim

import trueshift as ts
from trueshift.shifts import circular_shift

# Inductor and the ONNX exporter warn of their own affairs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]

SPECS = {
    "lps": ts.Sampling("lps", hidden=4, train_rule="softmax"),
    "lps + tri3": ts.Sampling("lps", "tri3", hidden=4, train_rule="softmax"),
    "lps + adapt3": ts.Sampling("lps", "adapt3", hidden=4, groups=4, train_rule="softmax"),
    "aps": ts.Sampling("aps"),
    "aps random": ts.Sampling("aps", "tri3", train_rule="random"),
    "stride + tri3": ts.Sampling("stride", "tri3"),
}
EXACT = [name for name in SPECS if not name.startswith("stride")]
SIZES = {"batch": Dim("batch", max=64), "h": Dim("h", min=2, max=64), "w": Dim("w", min=2, max=64)}
DYNAMIC = {"x": {0: SIZES["batch"], 2: 2 * SIZES["h"], 3: 2 * SIZES["w"]}}
SHIFTS = [(0, 1), (1, 0), (3, 5), (2, 2)]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    """Networks share one forward; without this, their recompilations add up to torch's limit."""
    torch.compiler.reset()


class Net(nn.Module):
    """Down, a branch that follows, up again: logits, a map and the phase."""

    def __init__(self, spec):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.down, self.follow, self.up = spec.down(8), spec.follow(8), spec.up(8)
        self.pool = ts.GlobalAvgPool()

    def forward(self, x):
        x = self.conv(x).relu()
        y, phase = self.down(x, return_phase=True)
        y = y + self.follow(x, phase=phase)
        return self.pool(y), self.up(y, phase), phase


def backends(*names):
    """Pair the named networks with inductor, all others too if slow tests run.

    Inductor needs a C++ compiler; without one, all but its code generation is tested.
    """
    inductor = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    for name in SPECS:
        yield pytest.param(name, inductor, marks=() if name in names else pytest.mark.slow)
        if name not in names:
            yield pytest.param(name, "aot_eager")


def assert_same(actual, expected, atol=1e-5):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), e, rtol=1e-4, atol=atol)


def assert_exact(run, x):
    logits, maps, _ = run(x)
    for shift in SHIFTS:
        moved_logits, moved_maps, _ = run(circular_shift(x, *shift))
        assert torch.equal(moved_logits, logits)
        assert torch.equal(moved_maps, circular_shift(maps, *shift))


@pytest.mark.parametrize(("name", "backend"), [*backends("lps + tri3")])
def test_compile_at_test_time(name, backend):
    net, x = Net(SPECS[name]).eval(), torch.randn(2, 3, 12, 8)
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    with torch.no_grad():
        assert_same(compiled(x), net(x))
        if name in EXACT:
            assert_exact(compiled, x)


@pytest.mark.parametrize(("name", "backend"), [*backends()])
def test_compile_while_training(name, backend):
    net, x = Net(SPECS[name]).train(), torch.randn(2, 3, 12, 8)
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    gradients = []
    for run in (net, compiled):
        net.zero_grad()
        logits, maps, _ = run(x)
        (logits.square().sum() + maps.square().sum()).backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(list(net.parameters()))
    assert_same(gradients[1], gradients[0], atol=1e-3)


def test_compile_with_the_gumbel_sample():
    down = torch.compile(ts.LPD(4), fullgraph=True, backend="aot_eager")
    y, phase = down(torch.randn(3, 4, 8, 6), return_phase=True)
    torch.testing.assert_close(phase.sum(1), torch.ones(3))
    assert y.requires_grad


def test_compile_for_all_sizes_at_once():
    net = Net(SPECS["lps + tri3"]).eval()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        for shape in ((2, 3, 12, 8), (3, 3, 6, 10)):
            x = torch.randn(shape)
            assert_same(compiled(x), net(x))


@pytest.mark.parametrize("name", SPECS)
def test_export_with_any_batch_and_size(name):
    net = Net(SPECS[name]).eval()
    exported = torch.export.export(net, (torch.randn(2, 3, 12, 8),), dynamic_shapes=DYNAMIC)
    for shape in ((1, 3, 8, 8), (5, 3, 20, 14)):
        x = torch.randn(shape)
        assert_same(exported.module()(x), net(x))


def onnx_runner(net, example, path):
    program = torch.onnx.export(net, (example,), dynamo=True, dynamic_shapes=DYNAMIC, verbose=False)
    program.save(path)
    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(out) for out in session.run(None, {name: x.numpy()})]


FILES = [
    pytest.param(name, marks=() if name in ("lps + tri3", "aps") else pytest.mark.slow)
    for name in SPECS
]


@pytest.mark.parametrize("name", FILES)
def test_onnx_with_any_batch_and_size(name, tmp_path):
    net = Net(SPECS[name]).eval()
    run = onnx_runner(net, torch.randn(2, 3, 12, 8), tmp_path / "net.onnx")
    for shape in ((1, 3, 8, 8), (5, 3, 20, 14)):
        x = torch.randn(shape)
        assert_same(run(x), net(x))
    if name in EXACT:
        assert_exact(run, torch.randn(2, 3, 12, 10))


def test_ties_fall_alike_in_torch_in_an_exported_program_and_in_onnx(tmp_path):
    class ThereAndBack(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = ts.APS(1), ts.LPU(1)

        def forward(self, x):
            y, phase = self.down(x, return_phase=True)
            return self.up(y, phase), phase

    net, example = ThereAndBack().eval(), torch.randn(2, 1, 4, 6)
    run = onnx_runner(net, example, tmp_path / "net.onnx")
    exported = torch.export.export(net, (example,), dynamic_shapes=DYNAMIC).module()
    levels = torch.tensor([0.0, 1.0, -1.0, 1e-3, 1e-41])
    for shape in ((64, 1, 4, 6), (64, 1, 6, 10)):
        for x in (torch.randint(2, shape).float(), levels[torch.randint(5, shape)]):
            up, phase = net(x)
            for other_up, other_phase in (run(x), exported(x)):
                assert torch.equal(other_phase, phase)
                assert torch.equal(other_up, up)

"""Whole networks, compiled and exported, compute what eager ones do."""

import onnxruntime
import pytest
import torch
from networks import trained
from torch.export import Dim

import trueshift as ts
from trueshift.shifts import circular_shift

# Inductor and the ONNX exporter warn of their own affairs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]

SPECS = {
    "stride": ts.Sampling("stride"),
    "aps": ts.Sampling("aps"),
    # Wide selectors: a dead one scores all components alike, and bits of the map then decide.
    "lps": ts.Sampling("lps", "tri3", hidden="same"),
    "lps on input": ts.Sampling("lps", hidden="same", select_from="input"),
}
BUILDERS = {
    "resnet18": lambda spec: ts.models.resnet18(spec, num_classes=10, stem="cifar"),
    "deeplab": lambda spec: ts.models.deeplabv3plus_resnet18(spec, num_classes=3),
    "stem": lambda spec: ts.models.resnet(spec, (1, 1), (16, 16), num_classes=3),
}
CASES = [  # LPS with a filter runs all that APS does, and more
    pytest.param((network, method), marks=pytest.mark.slow if method == "aps" else ())
    for network in BUILDERS
    for method in SPECS
    if (network == "stem") == (method == "lps on input")
]


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch.compiler.reset()


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    network, method = request.param
    torch.manual_seed(0)
    model = trained(BUILDERS[network](SPECS[method]))
    size = 32 if network == "resnet18" else 64
    x = torch.randn(3, 3, size, size)
    with torch.no_grad():
        return model, x, model(x), method


def close(ours, expected):
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def check_exact(run, x, out, method):
    """The compiled or exported network keeps the guarantee, up to its own rounding."""
    if method == "stride":
        return
    moved = run(circular_shift(x, 3, 5))
    expected = out if out.ndim == 2 else circular_shift(out, 3, 5)
    torch.testing.assert_close(moved, expected, atol=1e-4, rtol=1e-4)


def test_one_graph_without_breaks(case):
    model, x, out, method = case
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        close(run(x), out)
        check_exact(run, x, out, method)


@pytest.mark.slow
def test_inductor(case):
    model, x, _, method = case
    model, x = model.double(), x.double()  # rounds otherwise than eager, so near ties may differ
    run = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        out = model(x)
        close(run(x), out)
        check_exact(run, x, out, method)


def test_export_with_dynamic_batch(case):
    model, x, out, method = case
    program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch")},))
    run = program.module()
    with torch.no_grad():
        close(run(x[:2]), out[:2])
        check_exact(run, x, out, method)


@pytest.mark.slow
def test_onnx_with_dynamic_batch(case, tmp_path):
    model, x, out, method = case
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        model, (x,), path, dynamo=True, dynamic_shapes=({0: Dim("batch")},), verbose=False
    )
    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()

    def run(images):
        return torch.from_numpy(session.run(None, {given.name: images.numpy()})[0])

    close(run(x[:2]), out[:2])
    check_exact(run, x, out, method)


def test_a_graph_takes_images_that_eager_code_lays_out_otherwise():
    torch.manual_seed(0)
    model = ts.models.unet(ts.Sampling("stride"), 3, 3, widths=(4, 4)).eval()
    tall, wide = Dim("tall", max=200), Dim("wide", max=200)
    sizes = ({2: 2 * tall, 3: 2 * wide},)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(1, 3, 32, 48),), dynamic_shapes=sizes)
        large = torch.randn(1, 3, 192, 256)
        close(program.module()(large), model(large))

import io

import numpy as np
import onnxruntime
import pytest
import torch
import zoo
from networks import trained
from torch import nn
from user_nets import JumpUnet, Residual, image

from trueshift.convert import convert
from trueshift.export import export, load
from trueshift.shifts import circular_shift

X = image(2, 3, 32, 32)
CASES = {"residual": Residual, "jump unet": JumpUnet}


def converted(name, select_from="output"):
    if name == "resnet18":
        return convert(
            zoo.build("torchvision.resnet18"), "aps", X, select_from=select, verify=False
        )
    return convert(trained(CASES[name]()), "lps", X, select_from=select, verify=False)


@pytest.mark.parametrize(
    ("name", "select"),
    [
        ("residual", "output"),
        ("jump unet", "input"),
        pytest.param("resnet18", "output", marks=pytest.mark.slow),
        pytest.param("resnet18", "input", marks=pytest.mark.slow),
    ],
)
def test_compiles_without_graph_breaks(name, select):
    new = converted(name, select)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for x in (X, circular_shift(X, 3, 5)):
            torch.testing.assert_close(compiled(x), new(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["residual", "jump unet", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_exports_with_dynamic_batches(name):
    new = converted(name)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(new, (X,), dynamic_shapes=(({0: batch},),))
    with torch.no_grad():
        for x in (X, image(3, 3, 32, 32)):
            torch.testing.assert_close(program.module()(x), new(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "select"), [("residual", "output"), ("jump unet", "input")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_computes_the_same(name, select):
    new = converted(name, select)
    file = io.BytesIO()
    torch.onnx.export(new, (X,), dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    key = session.get_inputs()[0].name
    with torch.no_grad():
        for n in range(4):
            x = circular_shift(X, n, 2 * n)
            (y,) = session.run(None, {key: x.numpy()})
            np.testing.assert_allclose(y, new(x).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "select"), [("onnx", "input"), ("pt2", "output")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_one_file_takes_every_batch_and_size(form, select, tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    new = convert(trained(net.append(nn.AdaptiveAvgPool2d(1))), "aps", X, select_from=select)
    written = export(new, X, tmp_path / f"net.{form}", form)
    other = load(written.path)
    smallest = image(1, 3, *(low for low, _ in written.sizes))
    with torch.no_grad():
        for x in (X, image(3, 3, 20, 44), smallest):
            y = other(x)
            torch.testing.assert_close(y, new(x), rtol=1e-4, atol=1e-5)
            assert torch.equal(other(circular_shift(x, 3, 5)), y)

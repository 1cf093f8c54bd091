import sys

import pytest
import torch
from networks import trained
from torch import nn

import trueshift as ts
from trueshift.cli import main

# The exporters warn of their own affairs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]
SPEC = ts.Sampling("lps", "tri3")
FAMILIES = {
    "resnet": (lambda: ts.models.resnet18(SPEC, num_classes=10), 64),
    "unet": (lambda: ts.models.unet(SPEC, 1, 2, widths=(8, 16)), 16),
    "deeplab": (lambda: ts.models.deeplabv3plus_resnet18(SPEC, num_classes=3), 64),
}


def strided():
    """A network to convert."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    spec = ts.Sampling("aps")
    path = tmp_path / "net.safetensors"
    ts.save(trained(ts.models.unet(spec, 1, 2, widths=(4, 4))), path)
    return str(path)


def test_a_saved_network(saved, tmp_path, capsys):
    out = tmp_path / "net.pt2"
    words = ["export", saved, "--out", str(out), "--size", "8", "--repeats", "1"]
    assert main.main([*words, "--dynamic", "batch"]) == 0
    text = capsys.readouterr().out
    assert f"wrote {out}" in text
    assert "any batch, size 8" in text
    assert "exported program agrees with torch" in text
    assert "shifted images, torch: 6 of 6 shifts equal bit by bit" in text
    assert "medians of 1 interleaved runs" in text
    assert main.main(words) == 2
    assert "--force" in capsys.readouterr().err


def test_a_converted_network_as_onnx(tmp_path, capsys):
    out = tmp_path / "net.onnx"
    words = ["export", "test_export_command:strided", "--convert", "aps", "--select-from", "input"]
    words += ["--out", str(out), "--size", "8", "--repeats", "1", "--dynamic", "batch"]
    assert main.main(words) == 0
    text = capsys.readouterr().out
    assert "onnxruntime agrees with torch" in text
    assert "shifted images, onnxruntime:" in text


def test_exit_code_if_the_file_differs(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["trueshift.export.check"], "TOLERANCE", -1.0)
    words = ["export", saved, "--out", str(tmp_path / "a.pt2"), "--size", "8", "--dynamic", "none"]
    assert main.main(words) == 1
    assert "DIFFERS from torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["net.onnx", "--out", "a.pt2"], "is an ONNX file already"),
        (["no.safetensors", "--out", "a.pt2"], "no file"),
        (["test_export_command:strided", "--out", "a.bin"], "format"),
        (
            ["test_export_command:strided", "--out", "a.pt2", "--format", "onnx"],
            r"must end in .onnx",
        ),
        (
            ["test_export_command:strided", "--out", "a.pt2", "--select-from", "input"],
            "pass --convert",
        ),
        (["test_export_command:strided", "--out", "a.pt2", "--batch", "0"], "positive"),
        (["test_export_command:strided", "--out", "a.pt2", "--dynamic", "depth"], "dynamic"),
        (["test_export_command:strided", "--out", "no/a.pt2", "--size", "8"], "no folder"),
    ],
)
def test_wrong_input(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["export", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_any_batch_and_size(family, form, tmp_path, capsys):
    build, size = FAMILIES[family]
    torch.manual_seed(0)
    path = tmp_path / "net.safetensors"
    ts.save(trained(build()), path)
    out = str(tmp_path / f"net.{form}")
    assert main.main(["export", str(path), "--out", out, "--size", str(size)]) == 0
    text = capsys.readouterr().out
    assert "any batch, size" in text
    assert "agrees with torch" in text

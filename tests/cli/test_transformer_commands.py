"""audit, export and summary of transformers: our own, and converted ones."""

import json
import sys
from pathlib import Path

import pytest
import torch

import trueshift as ts
from trueshift.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "convert"))
from transformer_zoo import SMALL, build

# The exporters warn of their own affairs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]
CANONICAL = ["--positions", "canonical"]
CONVERSION = {
    "vit": [],
    "swin": [],
    "torchvision_swin": ["--convert", "aps"],
    "timm_swin": ["--convert", "aps"],
    "torchvision_vit": ["--convert", "aps", *CANONICAL],
}


def vit():
    torch.manual_seed(0)
    return ts.models.vit(ts.Sampling("lps", hidden=4), width=16, heads=2, depth=1)


def swin():
    torch.manual_seed(0)
    sizes = {"widths": (8, 16), "heads": (2, 2), "depths": (2, 2)}
    return ts.models.swin(ts.Sampling("aps"), **sizes)


def torchvision_swin():
    return build(SMALL["torchvision swin"][0])


def timm_swin():
    return build(SMALL["timm swin"][0])


def torchvision_vit():
    return build(SMALL["torchvision vit"][0])


@pytest.mark.parametrize("name", CONVERSION)
def test_audit(name, tmp_path):
    words = ["audit", f"{__name__}:{name}", *CONVERSION[name], "--size", "32"]
    words += ["--num-images", "2", "--shifts", "4", "--json", str(tmp_path / "audit.json")]
    assert main.main(words) == 0
    found = json.loads((tmp_path / "audit.json").read_text())
    (measured,) = (found["against"] if CONVERSION[name] else found)["measurements"]
    assert measured["consistency"] == 1
    assert measured["largest_change"] <= 1e-5 * measured["output_scale"]


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("name", CONVERSION)
def test_export(name, form, tmp_path, capsys):
    words = ["export", f"{__name__}:{name}", *CONVERSION[name], "--size", "32", "--repeats", "1"]
    words += ["--out", str(tmp_path / f"net.{form}"), "--dynamic", "batch"]
    assert main.main(words) == 0
    assert "agrees with torch" in capsys.readouterr().out


def sampling(model):
    return [(site.kind, site.method) for site in ts.summary(model) if site.kind != "stride"]


def test_summary_lists_patches_windows_and_origins():
    x = torch.randn(1, 3, 32, 32)
    assert [site.stride for site in ts.summary(swin())] == [2, 4, 2, 4]
    assert [site.method for site in ts.summary(vit())] == ["lps", "aps"]
    new = ts.convert(torchvision_swin(), "aps", x, verify=False)
    assert sampling(new) == [("down", "aps")] * 4
    new = ts.convert(torchvision_vit(), "aps", x, positions="canonical", verify=False)
    assert sampling(new) == [("down", "aps"), ("origin", "aps")]

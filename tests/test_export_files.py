"""Exported files: what they take, what they compute, what is refused."""

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.export import check, export, load
from trueshift.export.check import TOLERANCE, Exactness
from trueshift.export.trace import _narrower
from trueshift.export.write import Exported

# The exporters warn of their own affairs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]
X = torch.randn(2, 3, 12, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """One convolution, one learned choice, a mean."""

    required_multiple = 2

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.down, self.pool = ts.LPD(8), ts.GlobalAvgPool()

    def forward(self, x):
        return self.pool(self.down(self.conv(x).relu()))


class Branches(nn.Module):
    """Another code for small maps."""

    def forward(self, x):
        return x * 2 if x.shape[2] <= 20 else x * 3


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_a_program_takes_any_batch_and_size(net, tmp_path):
    exported = export(net, X, tmp_path / "net.pt2", "pt2")
    assert exported.batch == (1, None)
    assert exported.sizes == ((4, 4096), (4, 4096))  # maps of one pixel are special to torch
    found = check(net, exported, X, repeats=1)
    assert set(found.differences) == {
        (1, 3, 12, 8),
        (2, 3, 12, 8),
        (3, 3, 12, 8),
        (2, 3, 10, 8),
        (2, 3, 14, 8),
        (2, 3, 12, 6),
        (2, 3, 12, 10),
    }
    assert found.agrees
    assert found.torch_exactness == found.exactness == Exactness(6, 6, 0.0)
    assert found.size_mb == exported.path.stat().st_size / 1e6
    assert found.ms > 0
    assert not list(tmp_path.glob("*.partial*"))


def test_onnx_with_a_dynamic_batch(net, tmp_path):
    stages = []
    exported = export(net, X, tmp_path / "net.onnx", dynamic=["batch"], progress=stages.append)
    assert stages == ["tracing", "translating to ONNX"]
    assert exported.sizes == ((12, 12), (8, 8))
    found = check(net, exported, X, repeats=1)
    assert set(found.differences) == {(1, 3, 12, 8), (2, 3, 12, 8), (3, 3, 12, 8)}
    assert found.agrees
    assert found.exactness.total == 6
    assert found.exactness.largest < 1e-5
    assert load(exported.path).input_shape[1:] == (3, 12, 8)


def test_another_network_is_found_out(net, tmp_path):
    exported = export(net, X, tmp_path / "net.pt2", "pt2", dynamic=[])
    torch.manual_seed(1)
    found = check(Net().eval(), exported, X, repeats=1)
    assert max(found.differences.values()) > TOLERANCE
    assert not found.agrees


def test_plain_strides_change_under_shifts(tmp_path):
    plain = nn.Conv2d(3, 4, 3, 2, 1, padding_mode="circular")
    model = nn.Sequential(plain, ts.GlobalAvgPool()).eval()
    found = check(model, export(model, X, tmp_path / "a.pt2", "pt2", []), X, repeats=1)
    assert found.exactness.equal < found.exactness.total
    assert found.exactness.largest > 1e-3


def test_outputs_that_are_neither_scores_nor_maps_are_not_shifted(tmp_path):
    model = nn.Conv2d(3, 4, 3).eval()
    found = check(model, export(model, X, tmp_path / "a.pt2", "pt2", []), X, repeats=1)
    assert found.agrees
    assert found.exactness is None


def test_sizes_are_narrowed_to_one_branch(tmp_path):
    model = Branches().eval()
    exported = export(model, X, tmp_path / "a.pt2", "pt2")
    assert exported.sizes == ((1, 20), (1, 4096))
    assert check(model, exported, X, repeats=1).agrees


def test_a_fixed_size_is_an_error(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 8, 2)).eval()
    with pytest.raises(ValueError, match="Leave out 'size'"):
        export(model, X, tmp_path / "a.pt2", "pt2")
    assert not list(tmp_path.iterdir())


def test_reads_what_torch_suggests():
    known = {"batch": (1, None), "size0": (1, 128)}
    message = "no\n\nSuggested fixes:\n  size0 = Dim('size0', min=6, max=11)\n"
    assert _narrower(message, known) == {"batch": (1, None), "size0": (6, 11)}
    assert _narrower("something else", known) == known
    with pytest.raises(ValueError, match="size0 = 7"):
        _narrower("Suggested fixes:\n  size0 = 7\n", known)
    with pytest.raises(ValueError, match="batch of this network cannot change"):
        _narrower("Suggested fixes:\n  batch = 2\n", known)


def test_never_overwrites_unasked(net, tmp_path):
    path = tmp_path / "net.pt2"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="force"):
        export(net, X, path, "pt2", [])
    assert path.read_text() == "mine"
    assert isinstance(export(net, X, path, "pt2", [], force=True), Exported)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"form": "tflite"}, ValueError, "format"),
        ({"dynamic": ["channels"]}, ValueError, "dynamic"),
        ({"path": "net.bin"}, ValueError, r"must end in \.pt2"),
        ({"path": "no/net.pt2"}, FileNotFoundError, "no folder"),
        ({"example": X[:1]}, ValueError, "at least 2 images"),
        ({"example": X[:, :, :11]}, ValueError, "divisible"),
    ],
)
def test_errors(net, tmp_path, change, error, message):
    given = {"example": X, "path": "net.pt2", "form": "pt2", "dynamic": ["batch"], **change}
    with pytest.raises(error, match=message):
        export(net, given["example"], tmp_path / given["path"], given["form"], given["dynamic"])


def test_training_mode_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="eval"):
        export(Net(), X, tmp_path / "net.pt2", "pt2")

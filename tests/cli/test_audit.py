import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import trueshift as ts
from trueshift.audit.images import FolderImages
from trueshift.cli import audit as command
from trueshift.cli import main
from trueshift.cli.main import full_parser
from trueshift.cli.networks import Loaded, load_network

FAST = ("--shifts", "4", "--num-images", "2", "--size", "8")


def call(*words):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


def small(method="lps", num_classes=10, **options):
    torch.manual_seed(0)
    spec = ts.Sampling(method)
    return ts.models.resnet(spec, (1, 1), (4, 8), num_classes=num_classes, stem="cifar", **options)


@pytest.fixture
def net(tmp_path):
    ts.save(small(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "import torch\n"
        "class Corner(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return {'out': x[:, :, 0, 0], 'aux': x}\n"
        "build = Corner\n"
        "ready = Corner()\n"
        "wrong = dict\n"
        "def needy(width): ...\n"
        "number = 3\n"
        "flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_nets", None)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    for k, name in enumerate(("cat", "dog", "dog")):
        (root / name).mkdir(parents=True, exist_ok=True)
        grey = bytes((k * 40 + i) % 256 for i in range(12 * 10))
        Image.frombytes("L", (12, 10), grey).convert("RGB").save(root / name / f"{k}.png")
    return root


def test_a_network_that_passes(net, tmp_path, capsys):
    out = tmp_path / "out.json"
    page = tmp_path / "out.html"
    assert call(net, *FAST, "--fail-under", 1, "--json", out, "--html", page, "--labels") == 0
    said = capsys.readouterr()
    assert "net.safetensors is exactly shift-invariant here" in said.out
    assert "using 2 built-in pictures of 8 px" in said.err
    read = json.loads(out.read_text())
    assert read["consistency"] == 1
    assert read["measurements"][0]["accuracy"] is not None
    assert "textured shapes" in page.read_text()


def test_a_network_that_does_not_pass(factories, capsys):
    words = ("my_nets:build", *FAST, "--output", "out", "--fail-under", 0.99)
    assert call(*words) == 1
    assert "FAILED: consistency" in capsys.readouterr().err
    assert call("my_nets:ready", *FAST, "--output", "out") == 0


def test_images_of_a_folder(net, folder, tmp_path):
    out = tmp_path / "out.json"
    words = ("--images", folder, "--size", 8, "--shifts", 3, "--labels", "--json", out)
    assert call(net, *words) == 0
    read = json.loads(out.read_text())
    assert (read["num_images"], read["image_shape"]) == (3, [3, 8, 8])
    assert read["class_names"] == ["cat", "dog"]


def test_folder_images_are_resized_and_normalised(folder):
    whole = FolderImages(folder, None, (0.5,), (0.25,), labels=True)
    image, label = whole[2]
    assert image.shape == (1, 10, 12)
    assert label == 1
    wanted = (torch.arange(12) + 80) / 255
    torch.testing.assert_close(image[0, 0], (wanted - 0.5) / 0.25)
    square = FolderImages(folder, 5, (0, 0, 0), (1, 1, 1), num_images=2)
    assert [tuple(one.shape) for one in (square[0], square[1])] == [(3, 5, 5)] * 2
    assert [path.name for path in square.paths] == ["0.png", "1.png"]


def test_folders_named_by_numbers_are_their_labels(folder):
    (folder / "cat").rename(folder / "0007")
    (folder / "dog").rename(folder / "12")
    numbered = FolderImages(folder, 8, (0,), (1,), labels=True)
    assert [numbered[i][1] for i in range(3)] == [7, 12, 12]
    assert numbered.class_names == ()


def test_two_networks_are_compared(net, tmp_path):
    ts.save(small("stride"), tmp_path / "plain.safetensors")
    page, out = tmp_path / "out.html", tmp_path / "out.json"
    words = ("--against", net, *FAST, "--html", page, "--json", out)
    assert call(tmp_path / "plain.safetensors", *words) == 0
    assert "Side by side" in page.read_text()
    read = json.loads(out.read_text())
    assert (read["name"], read["against"]["name"]) == ("plain.safetensors", "net.safetensors")
    assert read["against"]["bitwise_equal"]


def test_networks_of_one_name_are_named_by_folder_or_weights():
    named = []
    for words in (
        ["a/net.ckpt", "--against", "b/net.ckpt"],
        ["m:f", "--weights", "a.pth", "--against", "m:f", "--against-weights", "b.pth"],
        ["m:f", "--against", "m:g"],
    ):
        args = full_parser().parse_args(["audit", *words])
        names = [Path(word).name for word in (args.network, args.against)]
        pair = command._named(args, *(Loaded(nn.Identity(), name) for name in names))
        named.append([one.name for one in pair])
    assert named == [["a/net.ckpt", "b/net.ckpt"], ["m:f (a.pth)", "m:f (b.pth)"], ["m:f", "m:g"]]


def test_before_and_after_conversion(factories, tmp_path, capsys):
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    conv = nn.Conv2d(3, 4, 3, 2, 1)\n"
        "    return nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    assert call("my_net:build", *FAST, "--convert", "aps") == 0
    assert "my_net:build, converted (aps) is exactly shift-invariant" in capsys.readouterr().out
    assert call("my_net:build", *FAST, "--convert", "stride", "--padding", "seam") == 0
    assert "converted (stride, seam) is exactly shift-invariant" in capsys.readouterr().out
    with pytest.raises(ValueError, match="only with --padding seam"):
        call("my_net:build", *FAST, "--convert", "stride")
    with pytest.raises(ValueError, match="--padding changes how --convert works"):
        call("my_net:build", *FAST, "--padding", "seam")


def test_grey_networks_get_grey_images(factories, tmp_path, capsys):
    (tmp_path / "my_grey.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    assert call("my_grey:build", *FAST) == 0
    assert "Consistency" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch.onnx, of itself
def test_an_onnx_file(tmp_path, capsys):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    path = tmp_path / "net.onnx"
    torch.onnx.export(model, (torch.zeros(2, 3, 8, 8),), path, verbose=False, dynamo=True)
    loaded = load_network(str(path))
    assert (loaded.channels, loaded.size) == (3, 8)
    x = torch.randn(3, 3, 8, 8)  # the file is for batches of two
    torch.testing.assert_close(loaded.model(x), model(x), rtol=1e-4, atol=1e-5)
    assert call(path, "--shifts", 3, "--num-images", 3) == 0
    assert "Consistency" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"takes \(2, 3, 8, 8\), got \(2, 3, 6, 6\)"):
        loaded.model(torch.zeros(2, 3, 6, 6))


def test_a_checkpoint_of_a_run(tmp_path):
    from lightning.pytorch import Trainer

    from trueshift.training import Classifier

    options = {"depths": (1, 1), "widths": (4, 8), "stem": "cifar"}
    module = Classifier(
        network="resnet", spec=ts.Sampling("lps"), num_classes=10, network_options=options
    )
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = load_network(str(tmp_path / "last.ckpt"))
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(loaded.model(x), module.network.eval()(x))
    assert call(tmp_path / "last.ckpt", *FAST, "--fail-under", 1) == 0


def test_torchvision_and_timm_with_weights(tmp_path, capsys):
    loaded = load_network("torchvision:squeezenet1_1")
    assert "its weights are random" in capsys.readouterr().err
    assert loaded.class_names is None  # random weights know none of them
    with torch.no_grad():
        loaded.model.classifier[1].bias.fill_(3)
    torch.save({"state_dict": loaded.model.state_dict()}, tmp_path / "w.pth")
    again = load_network("torchvision:squeezenet1_1", tmp_path / "w.pth")
    assert again.model.classifier[1].bias.detach().min() == 3
    assert "random" not in capsys.readouterr().err
    assert (len(again.class_names), again.class_names[542]) == (1000, "drumstick")
    other = load_network("timm:resnet10t")
    assert (other.channels, other.size) == (3, 176)
    assert len(other.mean) == 3
    torch.save(other.model.state_dict(), tmp_path / "timm.pth")
    named = load_network("timm:resnet10t", tmp_path / "timm.pth")
    assert named.class_names[542] == "drumstick"
    with pytest.raises(ValueError, match=r"w.pth does not fit the network"):
        load_network("timm:resnet10t", tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["resnet18"], ValueError, r"no network 'resnet18'. Pass torchvision:NAME"),
        (["torchvision:resnet19"], ValueError, "Did you mean 'resnet1"),
        (["timm:resnet10x"], ValueError, "unknown timm network"),
        (["missing.onnx"], FileNotFoundError, "no file missing.onnx"),
        (["no_such_module:build"], ImportError, "cannot import no_such_module"),
        (["my_nets:nothing"], ValueError, "my_nets has no nothing"),
        (["my_nets:wrong"], ValueError, "must return a torch.nn.Module, got dict"),
        (["my_nets:needy"], ValueError, r"needy needs arguments \(width\)"),
        (
            ["my_nets:flat", "--convert", "aps", "--size", "16"],
            ValueError,
            "pass --positions canonical: .* Or pass --padding seam",
        ),
        (["my_nets:number"], ValueError, "must return a torch.nn.Module, got int"),
        (["my_nets:build", "--images", "nowhere"], FileNotFoundError, "nowhere is not a folder"),
        (["my_nets:build", "--fail-under", "99"], ValueError, r"a fraction from 0 to 1, got 99"),
        (["my_nets:build", "--shifts", "-3"], ValueError, "--shifts must be a number or all"),
        (["my_nets:build", "--shifts", "3"], ValueError, "from: out, aux"),
        (["my_nets:build", "--html", "no/x.html"], FileNotFoundError, "no folder no"),
        (["my_nets:build", "--mean", "1", "2"], ValueError, "--mean takes 1 or 3 values, got 2"),
        (["my_nets:build", "--device", "nonsense"], ValueError, "--device nonsense"),
        (["my_nets:build", "--weights", "w.pth"], FileNotFoundError, "--weights: no file w.pth"),
        (["my_nets:build", "--against-weights", "w"], ValueError, "needs --against"),
        (["my_nets:build", "--labels", "--output", "out"], ValueError, "have 10 classes, .* has 3"),
    ],
)
def test_bad_input_is_refused(words, error, message, factories):
    with pytest.raises(error, match=message):
        call(*words)


def test_folders_without_images_or_classes(folder, tmp_path, net):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images found in .*empty \(looked for .png"):
        call(net, "--images", tmp_path / "empty")
    with pytest.raises(ValueError, match="labels are the names of sub-folders"):
        call(net, "--images", folder / "cat", "--labels")
    (folder / "cat" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken.png cannot be read"):
        call(net, "--images", folder, "--size", 8, "--shifts", 2)


def test_exit_codes(factories, capsys):
    words = ["audit", "my_nets:build", *FAST, "--output", "out"]
    assert main.main([*words, "--fail-under", "0"]) == 0
    assert main.main([*words, "--fail-under", "1"]) == 1
    assert main.main(["audit", "my_nets:build", *FAST]) == 2
    assert "trueshift audit: error: the network returns a dict" in capsys.readouterr().err


def test_files_that_are_something_else(tmp_path):
    for name in ("x.onnx", "x.ckpt", "x.safetensors"):
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(ValueError, match=name):
            load_network(str(tmp_path / name))


def test_a_cylinder_is_audited_where_it_wraps(factories, tmp_path, capsys):
    assert call("my_nets:ready", "--output", "out", *FAST, "--wraps", "vertical") == 0
    assert "vertically only, where the network wraps" in capsys.readouterr().out
    (tmp_path / "my_round_net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), *pool)\n"
    )
    report = tmp_path / "report.html"
    words = ("my_round_net:build", *FAST, "--convert", "aps", "--padding", "keep,circular")
    assert call(*words, "--html", report) == 0
    out = capsys.readouterr().out
    assert out.count("horizontally only") == 2  # both networks are shifted alike
    assert "converted (aps, keep,circular) is exactly shift-invariant here" in out
    assert "horizontally only" in report.read_text()


def test_anchored_windows_are_compared_with_the_centre(net, capsys, tmp_path):
    sizes = ("--size", "48", "--window", "32", "--anchor", "24", "--num-images", "2")
    page = tmp_path / "report.html"
    assert call(net, "--kind", "standard", *sizes, "--anchors", "2", "--html", page) == 0
    out = capsys.readouterr().out
    assert "net.safetensors, anchored x 2 minus net.safetensors, centre" in out
    assert "Same label in all nine frames" in out
    assert out.count("Moved by 8 px along both axes") == 2
    assert "same windows" in out
    assert page.read_text().count("<polyline") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--anchor", "24"), "--anchor is for frames that move: pass --kind standard"),
        (
            ("--anchor", "24", "--kind", "standard", "--convert", "aps"),
            "a second network. Pass only one",
        ),
        (("--anchors", "4", "--kind", "standard"), "pass their size with --anchor PX"),
        (("--anchor", "0", "--kind", "standard"), "window must be at least 1, got 0"),
        (
            ("--anchor", "24", "--anchors", "0", "--kind", "standard"),
            "anchors must be at least 1, got 0",
        ),
    ],
)
def test_anchors_that_make_no_sense(net, words, message):
    with pytest.raises(ValueError, match=message):
        call(net, *words)

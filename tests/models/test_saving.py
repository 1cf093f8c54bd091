import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import trueshift as ts
from trueshift.models import saving

LPS = ts.Sampling("lps", "tri3", hidden=(2, 3, 4))
MODELS = {
    "resnet18": lambda: ts.models.resnet18(LPS, num_classes=5, stem="cifar"),
    "resnet": lambda: ts.models.resnet(
        ts.Sampling("aps"), (1, 1), [4, 8], num_classes=2, stem="cifar", in_channels=1
    ),
    "deeplabv3plus_resnet18": lambda: ts.models.deeplabv3plus_resnet18(
        ts.Sampling("lps", "rect2", hidden=2), 3, output_stride=16, up="linear"
    ),
    "unet": lambda: ts.models.unet(ts.Sampling("lps", "adapt3"), 1, 2, (8, 16), dim=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_a_whole_model(name, tmp_path):
    model = MODELS[name]().eval()
    ts.save(model, tmp_path / "net.safetensors")
    again = ts.load(tmp_path / "net.safetensors")
    assert type(again) is type(model)
    assert not again.training
    assert again.spec == model.spec
    for (key, value), (other, there) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(value, there)
    channels = getattr(model, "in_channels", 3)
    x = torch.randn(1, channels, *([64] * model.spec.dim))
    with torch.no_grad():
        assert torch.equal(model(x), again(x))


def test_the_temperature_is_saved(tmp_path):
    model = MODELS["resnet18"]()
    ts.set_tau(model, 0.25)
    ts.save(model, tmp_path / "net.safetensors")
    assert ts.load(tmp_path / "net.safetensors").layer2[0].down.selector.tau == 0.25


def test_nothing_is_overwritten_unasked(tmp_path):
    path = tmp_path / "net.safetensors"
    ts.save(MODELS["resnet"](), path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"net.safetensors exists. Pass overwrite=True"):
        ts.save(MODELS["resnet"](), path)
    assert path.read_bytes() == before
    ts.save(MODELS["resnet"](), path, overwrite=True)
    assert path.read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_files_that_cannot_be_loaded_say_why(tmp_path):
    path = tmp_path / "net.safetensors"
    with pytest.raises(FileNotFoundError, match="load: no file"):
        ts.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(ValueError, match="is damaged, or not a safetensors file"):
        ts.load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"not one that trueshift.save wrote"):
        ts.load(path)


def test_a_cut_file_says_why(tmp_path):
    path = tmp_path / "net.safetensors"
    ts.save(MODELS["resnet"](), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        ts.load(path)


def _with_header(path, **changes):
    with safe_open(path, framework="pt") as opened:
        header = opened.metadata()
    save_file(load_file(path), path, header | changes)


def test_newer_and_foreign_headers_say_why(tmp_path):
    path = tmp_path / "net.safetensors"
    ts.save(MODELS["resnet"](), path)
    newer = str(saving.FORMAT_VERSION + 1)
    _with_header(path, format_version=newer)
    with pytest.raises(ValueError, match=f"format version {newer}, this trueshift reads up to"):
        ts.load(path)
    _with_header(path, format_version="1", builder="system")
    with pytest.raises(ValueError, match="unknown builder 'system'"):
        ts.load(path)
    arguments = {"spec": {"method": "lps"}, "depths": [1, 1], "widths": [4, 8], "future": 1}
    _with_header(path, builder="resnet", arguments=json.dumps(arguments))
    with pytest.raises(ValueError, match="cannot be built by this version"):
        ts.load(path)
    arguments = {"spec": {"method": "lps"}, "depths": [1, 1], "widths": [4, 8]}
    _with_header(path, arguments=json.dumps(arguments))
    with pytest.raises(ValueError, match="do not fit its resnet"):
        ts.load(path)


def test_other_modules_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"Linear was not built by a function of trueshift.models"):
        ts.save(torch.nn.Linear(2, 2), tmp_path / "net.safetensors")
    with pytest.raises(FileNotFoundError, match="no folder"):
        ts.save(MODELS["resnet"](), tmp_path / "missing" / "net.safetensors")


def test_summary_names_every_place():
    model = ts.models.deeplabv3plus_resnet18(ts.Sampling("lps", "tri3", hidden="eighth"))
    sites = ts.summary(model)
    assert [s.kind for s in sites].count("down") == 5
    assert [s.kind for s in sites].count("follow") == 3
    assert [s.kind for s in sites].count("up") == 5
    first = sites[0]
    assert (first.name, first.method, first.antialias) == ("backbone.conv1_down", "lps", None)
    assert (first.channels, first.hidden, first.stride) == (64, 8, 2)
    assert first.parameters == 64 * 8 * 9 + 8 + 8 * 8 * 9 + 8
    text = str(sites)
    assert "backbone.layer2.0.follow" in text
    assert f"{sum(s.parameters for s in sites):,} parameters for sampling" in text
    plain = ts.summary(ts.models.resnet18(ts.Sampling("stride"), stem="cifar"))
    assert {s.kind for s in plain} == {"stride"}
    layers = torch.nn.MaxPool2d(2), torch.nn.AvgPool1d((1,)), torch.nn.AvgPool3d(3, (1, 2, 2))
    pools = ts.summary(torch.nn.Sequential(*layers))
    assert [(s.name, s.kind, s.stride) for s in pools] == [
        ("0", "stride", 2),
        ("2", "stride", (1, 2, 2)),
    ]


SMALL = {
    "resnet9": {"stem": 4, "widths": (4, 8), "residual": (False, True)},
    "resnet": {"depths": (1, 1), "widths": (4, 8), "stem": "cifar"},
    "unet": {"widths": (4, 8)},
}


@torch.no_grad()
@pytest.mark.parametrize("builder", SMALL)
@pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
@pytest.mark.parametrize("method", ["aps", "lps"])
def test_resampled_networks_keep_their_weights_and_are_exact(builder, antialias, method):
    spec = ts.Sampling("stride", antialias, hidden=2, groups=2)
    model = getattr(ts.models, builder)(spec, num_classes=3, in_channels=3, **SMALL[builder])
    model(torch.randn(4, 3, 8, 8))  # running statistics
    model.eval()
    exact = ts.models.resample(model, method)
    assert not exact.training
    assert exact.origin.arguments["spec"] == spec.replace(method=method)
    state = exact.state_dict()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    x = torch.randn(2, 3, 16, 16)
    y, moved = exact(x), exact(x.roll((1, 3), (2, 3)))
    assert torch.equal(moved, y.roll((1, 3), (2, 3)) if y.ndim == 4 else y)
    back = ts.models.resample(exact, spec)
    assert torch.equal(back(x), model(x))


@pytest.mark.parametrize("method", ["stride", "aps", "lps"])
def test_a_network_trained_with_random_phases_takes_every_method(method):
    spec = ts.Sampling("aps", "tri3", train_rule="random", hidden=2)
    model = ts.models.resnet9(spec, 3, **SMALL["resnet9"])
    new = ts.models.resample(model, method).origin.arguments["spec"]
    assert new == (spec if method == "aps" else ts.Sampling(method, "tri3", hidden=2))


def test_resampling_does_not_invent_or_lose_weights():
    model = ts.models.resnet9(ts.Sampling("stride", "adapt3", groups=2), 3, **SMALL["resnet9"])
    with pytest.raises(ValueError, match=r"same weights: .*antialias.* Keep the"):
        ts.models.resample(model, ts.Sampling("aps", "tri3"))
    with pytest.raises(TypeError, match=r"Linear was not built by .* Use trueshift\.convert"):
        ts.models.resample(torch.nn.Linear(2, 2), "aps")

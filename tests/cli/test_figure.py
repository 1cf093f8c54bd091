import pytest
import torch
import yaml
from PIL import Image

import trueshift as ts
from trueshift.cli import figure
from trueshift.cli.main import main
from trueshift.data import make_shapes


def save(folder, name, method):
    spec = ts.Sampling(method, hidden=2)
    torch.manual_seed(1)
    model = ts.models.unet(spec, num_classes=3, widths=(4, 8)).eval()
    with torch.no_grad():  # untrained networks see one class everywhere: give all the same mean
        model.head.bias -= model(torch.randn(8, 3, 16, 16)).mean((0, 2, 3))
    path = folder / f"{name}.safetensors"
    ts.save(model, path)
    return str(path)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, size in enumerate((24, 31)):
        picture = make_shapes(1, size, seed=k)[0][0]
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{k}.png")
    return folder


def test_segmentation_of_two_networks(tmp_path, photos, capsys):
    a, b = save(tmp_path, "plain", "stride"), save(tmp_path, "exact", "lps")
    out = tmp_path / "x.png"
    words = ["figure", "segmentation", a, b, "--images", str(photos), "--out", str(out)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "exact: 0.00% of pixels changed" in told
    assert "plain: 0.00%" not in told
    assert f"figure: {out}" in told
    with Image.open(out) as picture:
        assert picture.height > 2 * picture.width  # five rows, two images
    assert main([*words, "--kind", "standard", "--shift", "1", "-2", "--names", "A", "B"]) == 0
    assert "A: " in capsys.readouterr().out
    assert main(["figure", "segmentation", a, a, "--out", str(out)]) == 2
    assert "Name them: --names A B" in capsys.readouterr().err


def test_true_masks_of_chosen_images(tmp_path, photos, capsys):
    a, b = save(tmp_path, "plain", "stride"), save(tmp_path, "exact", "lps")
    masks, out = tmp_path / "masks", tmp_path / "x.png"
    masks.mkdir()
    Image.new("L", (31, 31), 255).save(masks / "1.png")
    words = ["figure", "segmentation", a, b, "--images", str(photos), "--out", str(out)]
    chosen = [*words, "--pick", "1"]
    assert main(chosen) == 0
    with Image.open(out) as picture:
        without = picture.height
    for kind in ("circular", "standard"):
        assert main([*chosen, "--masks", str(masks), "--kind", kind]) == 0
        with Image.open(out) as picture:
            assert picture.height == without + 225  # a row of 1.5 inches
    capsys.readouterr()
    for wrong, text in (
        ([*words, "--masks", str(masks)], "no mask can be read from"),  # image 0 has none
        ([*chosen, "--masks", str(masks), "--size", "16"], "leave out --size"),
        ([*words, "--pick", "cat"], "no images called cat"),
        (["figure", "segmentation", a, b, "--pick", "1"], "pass --images DIR too"),
    ):
        assert main(wrong) == 2
        assert text in capsys.readouterr().err
    Image.new("RGB", (31, 31)).save(masks / "1.png")
    assert main([*chosen, "--masks", str(masks)]) == 2
    assert "one label per pixel, got mode RGB" in capsys.readouterr().err
    Image.new("L", (5, 5)).save(masks / "1.png")
    assert main([*chosen, "--masks", str(masks)]) == 2
    assert "the masks of 'truth' must have the sizes of the images" in capsys.readouterr().err


def test_components_and_filters(tmp_path, photos, capsys):
    exact, plain = save(tmp_path, "exact", "lps"), save(tmp_path, "plain", "stride")
    out = tmp_path / "x.png"
    common = ["--images", str(photos), "--out", str(out)]
    assert main(["figure", "components", exact, *common, "--size", "24"]) == 0
    assert "downs.0.down: the kept component has the largest norm in" in capsys.readouterr().out
    assert out.is_file()
    assert main(["figure", "components", exact, *common]) == 2
    assert "pass --size PX" in capsys.readouterr().err
    assert main(["figure", "components", plain, *common, "--size", "24"]) == 2
    assert "There are: none" in capsys.readouterr().err
    out.unlink()
    assert main(["figure", "filters", exact, "--out", str(out)]) == 0
    assert out.is_file()
    assert main(["figure", "filters", save(tmp_path, "aps", "aps"), "--out", str(out)]) == 2
    assert "no layer None with a learned selector" in capsys.readouterr().err


def test_wrong_words(tmp_path, capsys):
    assert main(["figure", "filters", "net.onnx"]) == 2
    assert "net.onnx is not a checkpoint" in capsys.readouterr().err
    assert main(["figure", "filters", "a.ckpt", "--out", str(tmp_path / "no" / "x.png")]) == 2
    assert "no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["figure"])


def test_images_are_normalised_as_the_run_was(tmp_path, capsys):
    checkpoint = tmp_path / "runs" / "net" / "0" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    assert figure._normalisation(str(checkpoint)) == figure.IMAGENET
    assert "normalised as ImageNet" in capsys.readouterr().err
    config = checkpoint.parent.parent / "config.yaml"
    for data in (None, {}, {"class_path": "no_such_module.Data"}, {"class_path": "pathlib.Path"}):
        config.write_text(yaml.safe_dump({"data": data}))
        assert figure._normalisation(str(checkpoint)) == figure.IMAGENET
        assert "normalised as ImageNet" in capsys.readouterr().err
    told = {"data": {"class_path": "trueshift.data.Shapes"}}
    (checkpoint.parent.parent / "config.yaml").write_text(yaml.safe_dump(told))
    assert figure._normalisation(str(checkpoint))[0] == (0.356, 0.356, 0.356)
    assert figure._name(str(checkpoint)) == "net"
    assert figure._name("a/exact.safetensors") == "exact"


def test_networks_are_called_by_what_tells_them_apart():
    assert figure._names("net_aps.ckpt", "net_lps_tri3.ckpt") == ["aps", "lps_tri3"]
    assert figure._names("net.ckpt", "net_lps.ckpt") == ["net", "net_lps"]
    assert figure._names("aps.ckpt", "lps.ckpt") == ["aps", "lps"]

import json
import threading
import urllib.error
import urllib.request

import pytest
import torch

import trueshift as ts
from trueshift.cli import demo as command
from trueshift.cli.demo_server import Demo, Shown, serve
from trueshift.cli.main import main
from trueshift.cli.options import read_images
from trueshift.data import make_shapes


def network(method):
    torch.manual_seed(0)
    return ts.models.resnet9(ts.Sampling(method), widths=(8, 16), residual=(False, False)).eval()


@pytest.fixture(scope="module")
def shown():
    nets = [Shown(method, network(method), 0.4, 0.2) for method in ("stride", "aps")]
    return Demo(nets, make_shapes(3, 24, seed=0)[0], (16, 16), [f"class {k}" for k in range(10)])


@pytest.fixture
def address(shown):
    server = serve(shown)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def test_page_and_predictions(address, shown):
    page = ask(address)
    assert page.count("data:image/png") == 3
    assert "<h2>stride</h2>" in page
    assert "<h2>aps</h2>" in page
    whole = json.loads(ask(f"{address}/predict?image=1&dy=0&dx=0"))
    moved = json.loads(ask(f"{address}/predict?image=1&dy=3&dx=-5"))
    assert whole[1] == moved[1]
    assert whole[0] != moved[0]
    label = shown.networks[1].predict(shown.pictures[1][:, 4:20, 4:20]).argmax()
    assert whole[1]["label"] == f"class {label}"
    assert [share for _, share in whole[0]["top"]] == sorted(
        (share for _, share in whole[0]["top"]), reverse=True
    )


def test_a_frame_moves_over_the_picture_and_stays_inside(shown):
    whole = shown.pictures[0]
    assert torch.equal(shown.seen(0, 0, 0, "frame"), shown.seen(0, 0, 0, "circular"))
    assert torch.equal(shown.seen(0, 2, -3, "frame"), whole[:, 6:22, 1:17])
    assert torch.equal(shown.seen(0, 99, -99, "frame"), whole[:, 8:24, 0:16])
    answers = {shown.predict(0, 2, -3, "frame")[k]["label"] for k in (0, 1)}
    (last,) = shown.predict(0, 2, -3, "frame", [1])
    assert last == shown.predict(0, 2, -3, "frame")[1]
    assert last["label"] in answers


def test_a_photo_is_taken(address, shown):
    pixels = make_shapes(1, 24, seed=5)[0][0]
    body = bytes(pixels.permute(1, 2, 0).flatten().tolist())
    num = int(ask(urllib.request.Request(f"{address}/picture", data=body)))
    assert torch.equal(shown.pictures[num], pixels)
    with pytest.raises(urllib.error.HTTPError, match="400") as error:
        ask(urllib.request.Request(f"{address}/picture", data=body[:-1]))
    assert "a photo has 1728 bytes, got 1727" in error.value.read().decode()
    error.value.close()


@pytest.mark.parametrize(
    "query",
    [
        "predict?image=9&dy=0&dx=0",
        "predict?image=0",
        "predict?image=0&dy=0&dx=0&networks=7",
        "elsewhere",
    ],
)
def test_bad_requests(address, query):
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(f"{address}/{query}")
    assert error.value.code in (400, 404)
    error.value.close()


def test_networks_of_the_newest_quickstart(tmp_path):
    with pytest.raises(FileNotFoundError, match="Run `trueshift quickstart` first"):
        command.newest_quickstart(tmp_path)
    for name in command.PICTURES:
        path = tmp_path / f"quickstart/0/pictures/{name}_seed0/network.safetensors"
        path.parent.mkdir(parents=True)
        ts.save(network("aps"), path)
    files = command.newest_quickstart(tmp_path)
    assert [path.split("/")[-2] for path in files] == [f"{name}_seed0" for name in command.PICTURES]


def test_wrong_usage(capsys):
    assert main(["demo", "a", "b", "--weights", "c"]) == 2
    assert "--weights: pass one file per network, got 1." in capsys.readouterr().err


def test_built_in_pictures_have_a_margin_for_the_frame():
    pictures = command._pictures(None, 2, 16)
    assert pictures.shape == (2, 3, 24, 24)
    assert torch.equal(pictures[:, :, 4:20, 4:20], make_shapes(2, 16, seed=1_000)[0])


def test_pictures_of_a_folder(tmp_path):
    from PIL import Image

    Image.new("RGB", (20, 24), (10, 200, 30)).save(tmp_path / "one.png")
    (picture,) = read_images(tmp_path, 4, 16, seed=0)
    assert picture.shape == (3, 16, 16)
    assert picture[:, 5, 5].tolist() == [10, 200, 30]

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
    return Demo(nets, make_shapes(3, 16, seed=0)[0], [f"class {k}" for k in range(10)])


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
    label = shown.networks[1].predict(shown.images[1]).argmax()
    assert whole[1]["label"] == f"class {label}"
    assert [share for _, share in whole[0]["top"]] == sorted(
        (share for _, share in whole[0]["top"]), reverse=True
    )


@pytest.mark.parametrize("query", ["predict?image=9&dy=0&dx=0", "predict?image=0", "elsewhere"])
def test_bad_requests(address, query):
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(f"{address}/{query}")
    assert error.value.code in (400, 404)
    error.value.close()


def test_networks_of_the_newest_quickstart(tmp_path):
    with pytest.raises(FileNotFoundError, match="Run `trueshift quickstart` first"):
        command.newest_quickstart(tmp_path)
    for name in command.BUILT_IN:
        path = tmp_path / "quickstart" / "0" / name / "network.safetensors"
        path.parent.mkdir(parents=True)
        ts.save(network("aps"), path)
    files = command.newest_quickstart(tmp_path)
    assert [path.split("/")[-2] for path in files] == ["baseline", "lps"]


def test_wrong_usage(capsys):
    assert main(["demo", "a", "b", "c"]) == 2
    assert "one or two networks" in capsys.readouterr().err


def test_pictures_of_a_folder(tmp_path):
    from PIL import Image

    Image.new("RGB", (20, 24), (10, 200, 30)).save(tmp_path / "one.png")
    (picture,) = read_images(tmp_path, 4, 16, seed=0)
    assert picture.shape == (3, 16, 16)
    assert picture[:, 5, 5].tolist() == [10, 200, 30]

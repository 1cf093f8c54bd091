import base64
import html.parser
import io
import json
import re

import pytest
import torch
from PIL import Image

import trueshift as ts
from trueshift.audit import audit
from trueshift.data import SHAPE_NAMES, make_shapes
from trueshift.report.examples import mask_rows
from trueshift.report.html import render, write_html
from trueshift.report.images import CHANGED, colour_mask, data_uri, heat_picture, tile
from trueshift.report.words import break_text, percent, shift_text, summary_lines, verdict


def images(num=3, size=8):
    pictures, labels, masks = make_shapes(num, size)
    return (pictures.float() / 255 - 0.356) / 0.158, labels, masks.long()


def classifier(method):
    torch.manual_seed(0)
    net = ts.models.resnet(ts.Sampling(method), (1, 1), (4, 8), num_classes=10, stem="cifar")
    centre(net, net.fc)
    return net


def centre(net, last):
    """Make the logits of an untrained network lie around 0, so that labels vary."""
    with torch.no_grad():
        logits = net.eval()(images()[0]).transpose(0, 1).flatten(1)
        last.bias.sub_(logits.mean(1))


@pytest.fixture(scope="module")
def results():
    x, labels, _ = images()
    options = {"class_names": SHAPE_NAMES, "shifts": 12, "examples": [2, 0]}
    return [
        audit(classifier(method), x, labels, name=name, **options)
        for method, name in (("stride", "<b>plain</b> & 'co'"), ("lps", "learned"))
    ]


@pytest.fixture(scope="module")
def segmenter():
    x, _, masks = images()
    torch.manual_seed(0)
    net = ts.models.unet(ts.Sampling("stride"), 3, 11, widths=(4, 8))
    centre(net, net.head)
    return audit(net, x, masks, kind="both", shifts=10, examples=1, name="unet")


def embedded(page, name):
    text = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    return json.loads(text.group(1))


def pixels(uri):
    kind, _, code = uri.partition(",")
    assert kind == "data:image/png;base64"
    read = Image.open(io.BytesIO(base64.b64decode(code))).convert("RGB").tobytes()
    return torch.tensor(list(read)).view(-1, 3)


class Addresses(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.addresses, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href", "action")]


def test_the_page_needs_nothing_else(results):
    page = render(*results)
    reader = Addresses()
    reader.feed(page)
    assert reader.addresses
    assert all(address.startswith("data:") for address in reader.addresses)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_names_are_escaped(results):
    page = render(results[0])
    assert "<b>plain</b>" not in page
    assert "&lt;b&gt;plain&lt;/b&gt; &amp; &#39;co&#39;" in page
    assert embedded(page, "data")["names"] == ["<b>plain</b> & 'co'"]


def test_the_view_has_the_predictions_of_both(results):
    data = embedded(render(*results), "data")
    assert len(data["examples"]) == 2
    view = [(dy, dx) for dy in data["rows"] for dx in data["columns"]]
    assert tuple(view) == results[0].view
    for example, mine, theirs in zip(
        data["examples"], results[0].examples, results[1].examples, strict=True
    ):
        assert example["index"] == mine.index
        assert example["target"] == mine.target
        assert example["nets"][0]["labels"] == mine.labels.tolist()
        assert example["nets"][1]["labels"] == theirs.labels.tolist()
        wanted = mine.picture.permute(1, 2, 0).reshape(-1, 3)
        assert torch.equal(pixels(example["picture"]), wanted.long())


def test_examples_that_only_one_network_has_say_so(results):
    x, labels, _ = images()
    other = audit(classifier("aps"), x, labels, shifts=12, examples=[0])
    data = embedded(render(results[0], other), "data")
    assert data["examples"][0]["nets"][1] is None
    assert data["examples"][1]["nets"][1] is not None


def test_one_sentence_says_how_it_went(results, segmenter):
    plain, learned = results
    assert re.search(r"changes its mind on \d.*interval.*at the worst shift", verdict(plain))
    assert verdict(learned) == (
        "learned is exactly shift-invariant here: in 36 circularly shifted images not one bit of"
        " its output changed."
    )
    assert break_text(learned).startswith("No module breaks")
    assert "breaks first at layer2.0.conv1 (SameConv2d)" in break_text(plain)
    assert re.search(
        r"gives \d.* of the pixels another label in.*(standard|circular) shifts;",
        verdict(segmenter),
    )
    assert verdict(learned) in render(learned)
    assert any("Consistency" in line and "100 %" in line for line in summary_lines(learned))


def test_learned_selectors_are_judged(results):
    plain, learned = results
    heading = "Whether the learned selectors choose"
    assert heading not in render(plain)
    page = render(plain, learned)
    assert heading in page
    assert "This selector chooses at chance: 25." in page
    assert "Choices of layer2.0.down" in page


def test_percent_never_claims_too_much():
    assert [percent(v) for v in (0, 0.0001, 0.5, 0.9999, 1)] == [
        "0 %",
        "< 0.1 %",
        "50.0 %",
        "> 99.9 %",
        "100 %",
    ]
    assert shift_text((-2, 5)) == "2 px up, 5 px right"


def test_the_heat_map_is_drawn_and_listed(results):
    (heat,) = embedded(render(results[0]), "heats")[0]
    grid = results[0].measurements[0].heat_map()[2]
    assert heat["kind"] == "circular"
    assert len(heat["values"]) == len(heat["rows"]) <= len(grid)
    flat = [v for row in heat["values"] for v in row if v is not None]
    assert min(flat) <= results[0].consistency <= max(flat)


def test_masks_under_shifts_mark_what_changed(segmenter, results):
    sheet = mask_rows([segmenter])
    (example,) = segmenter.examples
    assert sheet["heads"][:2] == ["no shift", "1 px down, 1 px right"]
    ((name, masks),) = sheet["rows"]
    assert (name, len(masks)) == ("unet", len(sheet["images"]))
    assert masks[0][1] == "0 % changed"
    still = example.labels[segmenter.view.index((0, 0))]
    moved = example.labels[segmenter.view.index((1, 1))].roll((-1, -1), (0, 1))
    red = (pixels(masks[1][0]) == torch.tensor(CHANGED)).all(1).view(still.shape)
    assert torch.equal(red, still != moved)
    assert red.any()
    assert "Segmentation under shifts" in render(segmenter)
    assert mask_rows(results) is None
    assert "Segmentation under shifts" not in render(results[0])


def test_the_report_shows_what_selectors_chose(results):
    plain, learned = results
    assert "What the selectors saw and kept" not in render(plain)
    page = render(plain, learned)
    (choice,) = learned.choices
    assert page.count('class="chosen') == 1
    assert page.count('alt="filter ') == len(choice.filters)
    assert "filters of a learned selector" in page
    x, labels, _ = images()
    norms = audit(classifier("aps"), x, labels, shifts=2)
    page = render(norms)
    assert 'class="chosen largest"' in page  # APS keeps the largest
    assert "filters of a learned selector" not in page


def test_masks_come_as_one_sheet(segmenter):
    data = embedded(render(segmenter), "data")
    (net,) = data["examples"][0]["nets"]
    (example,) = segmenter.examples
    zero = segmenter.view.index((0, 0))
    assert net["shares"][zero] == 1
    moved = example.labels[0].roll((-segmenter.view[0][0], -segmenter.view[0][1]), (0, 1))
    share = float((moved == example.labels[zero]).double().mean())
    assert net["shares"][0] == pytest.approx(share, abs=1e-4)
    sheet = pixels(net["sprite"]).view(len(data["rows"]) * 8, len(data["columns"]) * 8, 3)
    assert torch.equal(sheet[:8, 8:16], colour_mask(example.labels[1]).permute(1, 2, 0).long())


def test_networks_must_have_seen_the_same(results, segmenter, tmp_path):
    with pytest.raises(ValueError, match="got task classification and segmentation"):
        write_html(results[0], tmp_path / "x.html", segmenter)
    with pytest.raises(FileNotFoundError, match="no folder"):
        results[0].to_html(tmp_path / "missing" / "x.html")
    path = results[0].to_html(tmp_path / "x.html", other=results[1])
    assert path.read_text().startswith("<!doctype html>")


def test_nothing_to_show_is_no_error():
    x, _, _ = images()
    bare = audit(lambda batch: batch.mean((2, 3)), x, shifts=3, examples=0, layers=False)
    page = render(bare)
    assert 'id="view"' not in page
    assert 'id="layers"' not in page
    assert "Module errors" not in page


def test_pictures():
    generator = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (3, 5, 4), dtype=torch.uint8, generator=generator)
    assert torch.equal(pixels(data_uri(picture)), picture.permute(1, 2, 0).reshape(-1, 3).long())
    heat = heat_picture(torch.tensor([[0.5, 0.75, 1.0, torch.nan]]), lowest=0.5)
    assert heat[:, 0, 0].tolist() == [178, 24, 43, 255]
    assert heat[:, 0, 2].tolist() == [33, 102, 172, 255]
    assert heat[3, 0, 3] == 0
    tiles = tile(torch.arange(4).view(4, 1, 1, 1).expand(4, 1, 2, 2), columns=2)
    assert tiles[0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]

"""The audit's report in a real browser: it loads, it moves, it fits phones and desks."""

import shutil

import pytest
import torch

import trueshift as ts
from trueshift.audit import audit
from trueshift.data import SHAPE_NAMES, make_shapes
from trueshift.report.html import write_html

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    " --disable-background-networking --disable-component-update --disable-sync"
)
WIDTHS = {"phone": 390, "desk": 1280}


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    paths = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in paths.items() if path is None]
    assert not missing, f"install {missing}: Debian's chromium and chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(paths["chromedriver"]))
    yield driver
    driver.quit()


def audited(build, task):
    pictures, labels, masks = make_shapes(4, size=16, seed=2)
    x = (pictures.float() / 255 - 0.356) / 0.158
    classes = SHAPE_NAMES if task == "labels" else ("background", *SHAPE_NAMES)
    examples, results = 3, []
    for method in ("stride", "lps"):
        torch.manual_seed(0)
        net = build(ts.Sampling(method)).eval()
        with torch.no_grad():  # labels of an untrained network vary if its logits lie around 0
            last = net.fc if task == "labels" else net.head
            last.bias.sub_(net(x).transpose(0, 1).flatten(1).mean(1))
        result = audit(
            net,
            x,
            labels if task == "labels" else masks.long(),
            name=f"{task} by {method}",
            shifts=60,
            class_names=classes,
            examples=examples,
        )
        examples = [example.index for example in result.examples]
        results.append(result)
    return results


@pytest.fixture(scope="module")
def classifiers():
    return audited(
        lambda spec: ts.models.resnet(spec, (1, 1), (8, 16), num_classes=10, stem="cifar"), "labels"
    )


@pytest.fixture(scope="module")
def segmenters():
    return audited(lambda spec: ts.models.unet(spec, 3, 11, widths=(8, 16)), "masks")


def size_window(browser, width, height=900, scheme="light"):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def open_page(browser, results, path):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(write_html(results[0], path, *results[1:]).as_uri())
    WebDriverWait(browser, 20).until(
        lambda b: b.execute_script("return document.body.dataset.ready") == "yes"
    )


def pixels(browser, selector):
    """Return the raw pixels of a canvas."""
    return browser.execute_script(
        "const c = document.querySelector(arguments[0]);"
        "return Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data);",
        selector,
    )


def text(browser, selector):
    return browser.find_element("css selector", selector).text


def drag(browser, slider, value):
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('input', {bubbles: true}));",
        slider,
        value,
    )


def seen_by(browser, shape):
    """Return the picture on the canvas, ``(3, H, W)``."""
    flat = torch.tensor(pixels(browser, "#picture"))
    return flat.view(*shape, 4).permute(2, 0, 1)[:3]


def test_it_loads_without_errors_or_requests(browser, classifiers, tmp_path):
    size_window(browser, 1280)
    open_page(browser, classifiers, tmp_path / "x.html")
    assert browser.get_log("browser") == []
    sent = [e["message"] for e in browser.get_log("performance")]
    requests = [m for m in sent if '"Network.requestWillBeSent"' in m]
    assert requests
    assert not [m for m in requests if '"url":"http' in m]
    assert "labels by stride" in text(browser, ".verdict")


def test_sliders_move_the_picture_and_the_predictions(browser, classifiers, tmp_path):
    size_window(browser, 1280)
    open_page(browser, classifiers, tmp_path / "x.html")
    plain = classifiers[0]
    example, zero = plain.examples[0], plain.view.index((0, 0))
    assert torch.equal(seen_by(browser, (16, 16)), example.picture.long())
    changed = [k for k in range(len(plain.view)) if example.labels[k] != example.labels[zero]]
    assert changed
    before = text(browser, "[data-net='0'] .now"), text(browser, "[data-net='1'] .now")
    dy, dx = plain.view[changed[0]]
    drag(browser, "dy", dy)
    drag(browser, "dx", dx)
    moved = example.picture.roll((dy, dx), (1, 2)).long()
    assert torch.equal(seen_by(browser, (16, 16)), moved)
    assert text(browser, "[data-net='0'] .now") == SHAPE_NAMES[int(example.labels[changed[0]])]
    assert text(browser, "[data-net='0'] .now") != before[0]
    assert text(browser, "[data-net='0'] .badge") == "changed"
    assert text(browser, "[data-net='1'] .now") == before[1]
    assert text(browser, "[data-net='1'] .badge") == "unchanged"
    browser.find_element("id", "reset").click()
    assert text(browser, "[data-net='0'] .now") == before[0]


def test_arrow_keys_thumbnails_and_the_map(browser, classifiers, tmp_path):
    from selenium.webdriver.common.keys import Keys

    size_window(browser, 1280)
    open_page(browser, classifiers, tmp_path / "x.html")
    picture = browser.find_element("id", "picture")
    picture.click()
    picture.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_LEFT)
    assert (text(browser, "#dy-text"), text(browser, "#dx-text")) == ("2", "-1")
    picture.send_keys(*[Keys.ARROW_UP] * 30)  # stops at the end
    lowest = min(dy for dy, _ in classifiers[0].view)
    assert text(browser, "#dy-text") == str(lowest)
    browser.find_elements("css selector", "#thumbs button")[1].click()
    wanted = classifiers[0].examples[1].picture.roll((lowest, -1), (1, 2)).long()
    assert torch.equal(seen_by(browser, (16, 16)), wanted)
    browser.find_element("css selector", "[data-net='0'] .map").click()  # its middle
    assert abs(int(text(browser, "#dy-text"))) <= 1


def test_masks_move(browser, segmenters, tmp_path):
    size_window(browser, 1280)
    open_page(browser, segmenters, tmp_path / "x.html")
    still = pixels(browser, "[data-net='1'] .mask")
    assert text(browser, "[data-net='1'] .now") == "100 % as unshifted"
    drag(browser, "dx", 3)
    moved = pixels(browser, "[data-net='1'] .mask")
    rolled = torch.tensor(still).view(16, 16, 4).roll(3, 1).flatten()
    assert torch.equal(rolled, torch.tensor(moved))
    assert moved != still
    assert text(browser, "[data-net='0'] .badge") == "changed"


def test_a_phone_shows_picture_and_predictions_at_once(browser, classifiers, tmp_path):
    size_window(browser, 390, height=844)
    open_page(browser, classifiers, tmp_path / "x.html")
    top, bottom = browser.execute_script(
        "const boxes = [...document.querySelectorAll('.net')];"
        "return [document.getElementById('picture').getBoundingClientRect().top,"
        " boxes.at(-1).getBoundingClientRect().bottom];"
    )
    assert bottom - top < 844


@pytest.mark.parametrize("screen", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("task", ["classifiers", "segmenters"])
def test_it_fits_and_can_be_read(browser, request, tmp_path, screen, scheme, task):
    width = WIDTHS[screen]
    size_window(browser, width, scheme=scheme)
    open_page(browser, request.getfixturevalue(task), tmp_path / "x.html")
    wide, view = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"
    )
    assert wide <= view, "the page scrolls sideways"
    out = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e =>"
        " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.className || e.tagName);"
    )
    assert out == []
    unnamed = "return [...document.querySelectorAll('input')].filter(e => !e.labels.length).length"
    assert browser.execute_script(unnamed) == 0
    back, ink = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color];"
    )
    light = [sum(int(v) for v in c[4:-1].split(",")) for c in (back, ink)]
    assert (light[0] > light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 450
    picture = tmp_path / f"{screen}_{scheme}.png"
    assert browser.save_screenshot(str(picture))
    assert picture.stat().st_size > 10_000


def test_the_heat_map_is_read_by_pointing(browser, classifiers, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains

    size_window(browser, 1280)
    open_page(browser, classifiers, tmp_path / "x.html")
    frame = browser.find_element("css selector", "[data-heat='0,0'] .frame")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'});", frame)
    ActionChains(browser).move_to_element(frame).perform()
    assert text(browser, "[data-heat='0,0'] .tip").startswith("dy ")
    assert "%" in text(browser, "[data-heat='0,0'] .tip")

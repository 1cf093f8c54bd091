"""The demo in a real browser: dragging and arrow keys move the picture and ask the networks."""

import threading

import pytest
import torch
from test_report import browser  # noqa: F401

import trueshift as ts
from trueshift.cli.demo_server import Demo, Shown, serve
from trueshift.data import make_shapes

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address():
    nets = []
    for method in ("stride", "aps"):
        torch.manual_seed(0)
        net = ts.models.resnet9(ts.Sampling(method), widths=(8, 16), residual=(False, False))
        nets.append(Shown(method, net.eval(), 0.4, 0.2))
    server = serve(Demo(nets, make_shapes(3, 24, seed=0)[0], (16, 16)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def answers(browser):  # noqa: F811
    return [found.text for found in browser.find_elements("css selector", ".top")]


def wait(browser, condition):  # noqa: F811
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda _: condition())


def test_arrow_keys_and_dragging(browser, address):  # noqa: F811
    from selenium.webdriver import ActionChains, Keys

    browser.get(address)
    wait(browser, lambda: all(answers(browser)))
    before, canvas = answers(browser), browser.find_element("id", "picture")
    pixels = "return document.getElementById('picture').toDataURL()"
    still = browser.execute_script(pixels)
    canvas.send_keys(Keys.ARROW_RIGHT)
    wait(browser, lambda: browser.find_element("id", "shift").text == "0, 1")
    wait(browser, lambda: answers(browser)[0] != before[0])
    assert answers(browser)[1] == before[1]
    assert browser.execute_script(pixels) != still
    ActionChains(browser).click_and_hold(canvas).move_by_offset(60, 40).release().perform()
    wait(browser, lambda: browser.find_element("id", "shift").text not in ("0, 0", "0, 1"))
    same = browser.find_elements("css selector", ".changes")[1]
    wait(browser, lambda: "the same answer at" in same.text)
    assert answers(browser)[1] == before[1]
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_another_picture_starts_anew(browser, address):  # noqa: F811
    browser.get(address)
    wait(browser, lambda: all(answers(browser)))
    before = answers(browser)
    browser.find_elements("css selector", "#strip button")[2].click()
    wait(browser, lambda: answers(browser) != before)
    assert browser.find_element("id", "shift").text == "0, 0"


def test_a_frame_moves_and_stays_inside(browser, address):  # noqa: F811
    from selenium.webdriver import Keys

    browser.get(address)
    wait(browser, lambda: all(answers(browser)))
    browser.find_element("css selector", "[value=frame]").click()
    canvas = browser.find_element("id", "picture")
    assert (
        browser.execute_script("return [arguments[0].width, arguments[0].height]", canvas)
        == [24] * 2
    )
    for _ in range(6):
        canvas.send_keys(Keys.ARROW_DOWN)
    wait(browser, lambda: browser.find_element("id", "shift").text == "4, 0")


def test_networks_are_chosen(browser, address):  # noqa: F811
    browser.get(address)
    wait(browser, lambda: all(answers(browser)))
    browser.find_elements("css selector", "[name=network]")[0].click()
    cards = browser.find_elements("css selector", "#networks section")
    assert [card.is_displayed() for card in cards] == [False, True]


def test_a_photo_of_ones_own(browser, address, tmp_path):  # noqa: F811
    from PIL import Image

    browser.get(address)
    wait(browser, lambda: all(answers(browser)))
    before = answers(browser)
    Image.effect_mandelbrot((60, 40), (-2, -1, 1, 1), 50).convert("RGB").save(tmp_path / "own.png")
    browser.find_element("id", "photo").send_keys(str(tmp_path / "own.png"))
    wait(browser, lambda: len(browser.find_elements("css selector", "#strip button")) == 4)
    wait(browser, lambda: answers(browser) != before)
    (tmp_path / "no.png").write_text("not a picture")
    browser.find_element("id", "photo").send_keys(str(tmp_path / "no.png"))
    wait(browser, lambda: "could not be shown" in browser.find_element("id", "problem").text)

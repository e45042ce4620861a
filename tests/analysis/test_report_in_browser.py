"""`report.html` in a real browser: sorting, filtering, opening a run, dark mode, a phone."""

import base64
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from analysis import html
from analysis.answer import answer
from analysis.compare import compare
from analysis.frame import load
from tests.analysis import sweeps_to_draw
from tests.analysis.test_analysis_html import HOSTILE, hostile_run

selenium = pytest.importorskip("selenium")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE, DESKTOP = (390, 844), (1280, 900)


class Browser:
    """A page in Chromium, with what it logged and asked the network for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self,
        page: Path,
        fragment: str = "",
        *,
        size: tuple[int, int] = DESKTOP,
        dark: bool = False,
        script: bool = True,
        medium: str = "",
    ) -> None:
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media=medium, features=[theme])
        self.cdp("Emulation.setScriptExecutionDisabled", value=not script)
        wide, high = size
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=wide,
            height=high,
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + fragment)

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def js(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def column(self, sheet: str, number: int) -> list[str]:
        """The texts of one column (from 1) of the rows that are shown."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
            ".filter(row => !row.hidden)"
            ".map(row => row.cells[arguments[1] - 1].textContent.trim())",
            sheet,
            number,
        )
        return found

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        log = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        sent = (each["params"] for each in log if each["method"] == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(session: Browser) -> Iterator[Browser]:
    """The same browser; whatever a test does, the page logs nothing and asks for nothing."""
    session.errors()
    session.requests()
    yield session
    assert session.errors() == []
    asked = session.requests()
    assert any(url.startswith("file:") for url in asked)  # the log works
    outside = [url for url in asked if not re.match("file:|data:|about:", url)]
    assert outside == []


def written(out: Path, sweep: Path) -> Path:
    frame, problems = load(sweep)
    comparison = compare(frame)
    return html.write(comparison, answer(comparison), frame, problems, "command", out)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = sweeps_to_draw.matrix(tmp_path_factory.mktemp("browser"))
    return written(sweep / "tables", sweep)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = sweeps_to_draw.large(tmp_path_factory.mktemp("large"))
    return written(sweep / "tables", sweep)


def number(text: str) -> float:
    return float(text.split(" ")[0].replace(",", ""))


def test_a_click_on_a_heading_sorts_by_value_and_a_second_one_the_other_way(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    speeds = browser.column("runs", 6)
    button = browser.find("#runs thead th:nth-child(6) button")
    button.click()
    up = browser.column("runs", 6)
    assert sorted(up) == sorted(speeds)
    assert [number(t) for t in up if t] == sorted(number(t) for t in speeds if t)
    assert up[20:] == [""] * 7  # what is missing is last
    head = browser.find("#runs thead th:nth-child(6)")
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    down = browser.column("runs", 6)
    assert [t for t in down if t] == [t for t in up if t][::-1]
    assert down[20:] == [""] * 7
    assert head.get_attribute("aria-sort") == "descending"


def test_times_are_sorted_by_seconds_and_not_by_their_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.find("#cells-1 thead th:nth-child(5) button").click()
    times = browser.column("cells-1", 5)
    assert times[6].startswith("1 m 0")
    assert times[7:] == ["FAILED", "PENDING"]


def test_sorting_works_by_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    button = browser.find("#runs thead th:nth-child(1) button")
    browser.js("arguments[0].focus()", button)
    button.send_keys("\ue007")  # Enter
    assert browser.column("runs", 1) == ["ddp"] * 9 + ["dp"] * 9 + ["none"] * 9


def test_the_filter_keeps_the_rows_that_hold_every_word_and_counts_them(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    field = browser.find("#runs .filter input")
    field.send_keys("DDP scaler")
    assert browser.column("runs", 1) == ["ddp"] * 3
    assert browser.column("runs", 2) == ["scaler"] * 3
    assert browser.find("#runs .filter output").text == "3 of 27 rows"
    field.clear()
    field.send_keys(" ")
    assert len(browser.column("runs", 1)) == 27


def test_a_figure_opens_its_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    link = browser.find("#runs tbody tr:nth-child(17) td:nth-child(4) a")
    target = link.get_attribute("href").partition("#")[2]
    assert browser.js("return document.getElementById(arguments[0]).open", target) is False
    link.click()
    opened = browser.find(f"#{target}")
    assert browser.js("return arguments[0].open", opened) is True
    assert opened.find_element("css selector", "summary").text == "dp x scaler, seed 1: failed"
    assert "illegal memory access" in opened.text
    top = browser.js("return arguments[0].getBoundingClientRect().top", opened)
    assert 0 <= top < DESKTOP[1]


def test_an_address_with_a_run_opens_it_at_once(browser: Browser, page: Path) -> None:
    browser.open(page, "#run-5")
    assert browser.js("return document.getElementById('run-5').open") is True


def test_a_cell_of_several_seeds_leads_to_all_of_its_runs(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.find("#cells-1 tbody tr:nth-child(2) td:nth-child(6) a").click()
    assert browser.js("return location.hash") == "#cell-1-2"
    assert "none x autocast" in browser.find("#cell-1-2").text


def test_the_link_to_the_record_of_a_run_leads_to_it(browser: Browser, page: Path) -> None:
    browser.open(page, "#run-1")
    browser.find("#run-1 .files a").click()
    assert '"schema_version"' in browser.find("body").text


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_and_its_pictures_follow_the_colours_that_a_person_prefers(
    browser: Browser, page: Path, dark: bool
) -> None:
    browser.open(page, dark=dark)
    ground = browser.js("return getComputedStyle(document.body).backgroundColor")
    shown = browser.js(
        """
        const image = document.querySelector('figure img');
        return image.decode().then(() => {
            image.scrollIntoView();
            return image.getBoundingClientRect().toJSON();
        });
        """
    )
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 150) is dark
    paper = lightness_at(browser, shown["left"] + 5, shown["top"] + 5)
    assert paper < 60 if dark else paper > 200


def lightness_at(browser: Browser, x: float, y: float) -> float:
    """Mean of the three channels of a pixel on the screen, 0 to 255."""
    clip = {"x": 0, "y": 0, "width": 0, "height": 0, "scale": 1}
    scrolled = browser.js("return [scrollX, scrollY]")
    clip |= {"x": x + scrolled[0], "y": y + scrolled[1], "width": 3, "height": 3}
    data = browser.cdp("Page.captureScreenshot", format="png", clip=clip)["data"]
    pixel = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB").getpixel((1, 1))
    assert isinstance(pixel, tuple)
    return sum(pixel) / 3


@pytest.mark.parametrize("which", ["page", "large"])
@pytest.mark.parametrize("size", [PHONE, (320, 600), DESKTOP])
def test_no_width_makes_the_page_scroll_sideways(
    browser: Browser, request: pytest.FixtureRequest, which: str, size: tuple[int, int]
) -> None:
    browser.open(request.getfixturevalue(which), size=size)
    browser.js("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.js("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_what_is_wider_than_a_phone_is_reached_by_the_keyboard(
    browser: Browser, page: Path
) -> None:
    browser.open(page, size=PHONE)
    table = browser.find("#cells-1 .wide")
    assert table.get_attribute("tabindex") == "0"
    assert table.get_attribute("aria-label") == "Cells"
    assert browser.js("return arguments[0].scrollWidth > arguments[0].clientWidth", table)


def test_pictures_keep_their_size_on_a_phone_and_fit_a_desktop(
    browser: Browser, page: Path
) -> None:
    width = "return document.querySelector('figure img').getBoundingClientRect().width"
    browser.open(page, size=PHONE)
    assert browser.js(width) >= 600
    browser.open(page)
    assert browser.js(width) <= 640


def test_everything_can_be_read_without_javascript(browser: Browser, page: Path) -> None:
    browser.open(page, "#run-5", script=False)
    # The driver's own script runs in a world of its own.
    assert browser.find("#answer dl").is_displayed()
    assert browser.find("#runs table").is_displayed()
    assert not browser.find("#runs .filter").is_displayed()
    assert browser.driver.find_elements("css selector", "th button") == []
    browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


def test_every_picture_is_shown(browser: Browser, large: Path) -> None:
    browser.open(large)
    widths = browser.js(
        """
        const images = [...document.images];
        return Promise.all(images.map(image => image.decode().then(() => image.naturalWidth)));
        """
    )
    assert len(widths) == 12
    assert min(widths) > 300


def test_printing_shows_no_controls(browser: Browser, page: Path) -> None:
    browser.open(page, medium="print")
    assert not browser.find("#runs .filter").is_displayed()
    assert not browser.find("nav").is_displayed()
    assert browser.find("#answer dl").is_displayed()


@pytest.fixture
def hostile(tmp_path: Path) -> Callable[[str], Path]:
    return lambda bad: written(tmp_path, hostile_run(tmp_path, bad).parent)


@pytest.mark.parametrize("bad", HOSTILE)
def test_no_text_of_a_record_runs_as_a_script(
    browser: Browser, hostile: Callable[[str], Path], bad: str
) -> None:
    browser.open(hostile(bad))
    browser.js("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.js("return window.hit") is None
    assert len(browser.driver.find_elements("css selector", "script")) == 1
    field = browser.driver.find_elements("css selector", ".filter input")
    for each in (item for item in field if item.is_displayed()):
        each.send_keys(bad.replace("\u0000", "").replace("\u001b", ""))
    assert browser.js("return window.hit") is None


def test_the_policy_stops_a_script_that_somebody_put_into_the_page(
    session: Browser, page: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.html"
    text = page.read_text(encoding="utf-8")
    more = "<script>window.hit = 1</script><img src='http://127.0.0.1:9/x.png'></body>"
    changed.write_text(text.replace("</body>", more), encoding="utf-8")
    session.open(changed)
    assert session.js("return window.hit") is None
    assert sum("Content Security Policy" in message for message in session.errors()) >= 2

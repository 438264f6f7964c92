"""The page in Debian's Chromium, opened from disk with no network, as `pytest tests/browser` runs it."""

import importlib
from typing import Any

import numpy as np
import pytest

from softmax_jax.experiment.report.page import Figure, page
from softmax_jax.experiment.report.playground import POSITIONS, SLIDERS, playground_numbers
from softmax_jax.experiment.report.sections import playground_section, report_sections
from softmax_jax.normalizers.registry import METHODS, normalizer
from tests.experiment.report.studies import small_study

playwright: Any = importlib.import_module("playwright.sync_api")

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
READY = "html[data-ready=true]"
MOVE = """async (values) => {
  const view = charts.get("playground").view;
  for (const [name, value] of Object.entries(values)) view.signal(name, value);
  await view.runAsync();
}"""
PLAYGROUND = "[...document.querySelectorAll('[data-chart=playground] .role-mark text')].map((t) => t.textContent)"
# Every text that shows, with its colour and the nearest background behind it.
TEXTS = """() => {
  const found = [];
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.endsWith(", 0)") && colour !== "transparent") return colour;
    }
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const style = getComputedStyle(element);
    const hidden = !element.checkVisibility() || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName);
    if (hidden || !walk.currentNode.textContent.trim()) continue;
    const svg = element instanceof SVGElement;
    found.push([walk.currentNode.textContent.trim().slice(0, 40), svg ? style.fill : style.color, behind(element)]);
  }
  return found;
}"""


class Opened:
    """A page with all that it complained about and asked for."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.problems, self.requests = [], []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(READY, timeout=60_000)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run, study = small_study()
    directory = tmp_path_factory.mktemp("report")
    sections = [*report_sections([run], study), playground_section({})]
    (directory / "index.html").write_text(page("A small report", sections, "A note."))
    names = [part.name for section in sections for part in section.parts if isinstance(part, Figure)]
    return (directory / "index.html").as_uri(), names


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


LARGE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def desktop(browser, report):
    return Opened(browser, report[0], viewport=LARGE, color_scheme="light")


@pytest.fixture(scope="module")
def dark(browser, report):
    return Opened(browser, report[0], viewport=LARGE, color_scheme="dark")


def contrast(text: str, background: str) -> float:
    """The contrast of two colours by WCAG 2.1, given as CSS computes them."""
    luminances = []
    for colour in (text, background):
        numbers = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
        linear = np.where(numbers <= 0.04045, numbers / 12.92, ((numbers + 0.055) / 1.055) ** 2.4)
        luminances.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_nothing_goes_wrong_or_leaves_the_page_and_every_control_has_a_name(desktop):
    assert desktop.problems == []
    assert [url for url in desktop.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    assert sum(url.startswith("file:") for url in desktop.requests) == 1
    unnamed = desktop.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a")].filter((control) =>
          !(control.textContent.trim() || control.labels?.[0]?.textContent.trim() || control.ariaLabel || control.title)
        ).map((control) => control.outerHTML)"""
    )
    assert unnamed == []


def test_every_chart_has_marks(desktop, report):
    _, names = report
    assert desktop.page.evaluate("[...charts.keys()]") == names
    assert {"accuracy", "dispersion", "attention_maps", "entropy", "resolution", "losses"} <= set(names)
    counts = desktop.page.evaluate(
        """() => [...charts.values()].map(({ view }) => {
          let marks = 0;
          const visit = (group) => {
            for (const item of group.items ?? []) {
              if (group.marktype === "group") item.items.forEach(visit);
              else if (group.role === "mark") marks += 1;
            }
          };
          visit(view.scenegraph().root);
          return marks;
        })"""
    )
    assert min(counts) > 0, dict(zip(names, counts))
    sizes = desktop.page.evaluate(
        "[...document.querySelectorAll('.chart')].map((c) => c.querySelector('svg, canvas').getBoundingClientRect())"
    )
    assert all(size["width"] > 250 and size["height"] > 150 for size in sizes)


@pytest.mark.parametrize("position", [(0, 0, 0), (6, 4, 1), (10, 10, 5), (8, 1, 3), (12, 8, 1)])
def test_the_playground_shows_the_numbers_of_its_sliders(desktop, position):
    desktop.page.evaluate(MOVE, dict(zip(SLIDERS, position)))
    numbers = playground_numbers({name: normalizer(name) for name in METHODS})
    best, _, entropy = np.transpose([arrays[:, POSITIONS.index(position)] for arrays in numbers.values()])
    shown = [text.split() for text in desktop.page.evaluate(PLAYGROUND)]
    np.testing.assert_allclose([float(text[0]) for text in shown], best, rtol=0, atol=1e-4)
    np.testing.assert_allclose([float(text[1]) for text in shown], entropy, rtol=0, atol=6e-3)


def test_the_sliders_change_the_numbers_and_answer_to_the_keyboard(desktop):
    sliders = desktop.page.locator("#controls-playground input[type=range]")
    desktop.page.evaluate(MOVE, {"log2_others": 6, "gap": 4, "noise": 1})
    for slider in sliders.all():
        before = desktop.page.evaluate(PLAYGROUND)
        slider.focus()
        slider.press("ArrowRight")
        changed = f"(before) => JSON.stringify({PLAYGROUND}) !== JSON.stringify(before)"
        desktop.page.wait_for_function(changed, arg=before)
        assert len(desktop.page.evaluate(PLAYGROUND)) == len(before) == len(METHODS)


def test_the_table_sorts_by_keyboard(desktop):
    column = "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[2].textContent)"
    heading = desktop.page.locator("#table thead th").nth(2)
    unsorted = desktop.page.evaluate(column)
    for order, sign in (("descending", -1), ("ascending", 1)):
        heading.locator("button").press("Enter")
        assert heading.get_attribute("aria-sort") == order
        values = [float(text.split("±")[0]) for text in desktop.page.evaluate(column) if text != "–"]
        assert values == sorted(values, key=lambda value: sign * value)
        assert len(set(values)) > 2
    assert sorted(unsorted) == sorted(desktop.page.evaluate(column))
    first = desktop.page.locator("#table thead th").first
    first.locator("button").press("Enter")
    names = desktop.page.locator("#table tbody th").all_text_contents()
    assert names == sorted(names)
    assert heading.get_attribute("aria-sort") == "none"


@pytest.mark.parametrize("theme", ["desktop", "dark"])
def test_every_text_and_every_line_stands_out_from_its_background(theme, request):
    opened = request.getfixturevalue(theme)
    texts = opened.page.evaluate(TEXTS)
    low = [(text, colour, behind) for text, colour, behind in texts if contrast(colour, behind) < 4.5]
    assert low == []
    shown = {text for text, _, _ in texts}
    assert {"What falls", "Why", "accuracy (% of sets)", "A note."} <= shown
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast("rgb(255, 255, 255)", background) < 1.5) == (theme == "desktop")
    lines = "[...document.querySelectorAll('[data-chart=accuracy] .mark-line path')]"
    strokes = opened.page.evaluate(f"{lines}.map((path) => getComputedStyle(path).stroke)")
    assert len(strokes) >= 3
    assert min(contrast(stroke, background) for stroke in strokes) >= 3


def test_the_button_changes_the_theme_and_keeps_the_playground(dark):
    dark.page.evaluate(MOVE, {"gap": 2})
    for background in ("rgb(255, 255, 255)", "rgb(20, 24, 29)"):
        dark.page.click("#theme")
        dark.page.wait_for_selector(READY)
        assert dark.page.evaluate("getComputedStyle(document.body).backgroundColor") == background
        assert dark.page.evaluate("charts.get('playground').view.signal('gap')") == 2
        assert dark.page.locator("#controls-playground input").first.input_value() == "6"
        assert dark.page.locator("#controls-playground input").first.is_visible()
    assert dark.page.locator("#controls-playground input").count() == len(SLIDERS)
    assert dark.problems == []


def test_the_tabulator_reaches_every_control_and_each_shows_that_it_has_the_focus(browser, report):
    page, reached = Opened(browser, report[0], viewport=LARGE).page, []
    controls = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, .chart, .scroll")].filter((control) =>
          control.checkVisibility() && !(control.type === "radio" && !control.checked)).length"""
    )
    for _ in range(3 * controls):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => { const e = document.activeElement, style = getComputedStyle(e);
              return [e.tagName, e.tagName === "BODY" || e.tagName === "IFRAME" || style.outlineStyle !== "none"]; }"""
        )
        if focus[0] == "BODY":
            break
        reached.append(focus)
    assert len(reached) >= controls
    assert [tag for tag, outlined in reached if not outlined] == []
    assert page.evaluate("document.querySelector('.skip').getAttribute('href')") == "#main"


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (390, "dark"), (1100, "light"), (1400, "dark")])
def test_no_text_of_a_chart_is_cut_and_no_curve_is_without_its_name(browser, report, width, theme):
    opened = Opened(browser, report[0], viewport={"width": width, "height": 844}, color_scheme=theme)
    cut = opened.page.evaluate(
        """() => [...document.querySelectorAll(".chart svg text")].filter((text) => {
          const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
          return own.width && (own.left < all.left - 1 || own.right > all.right + 1);
        }).map((text) => [text.closest(".chart").dataset.chart, text.textContent])"""
    )
    assert cut == []
    beside = opened.page.evaluate(
        """() => [...document.querySelectorAll(".chart")].filter((chart) => chart.scrollWidth > chart.clientWidth + 1)
          .map((chart) => chart.dataset.chart)"""
    )
    assert set(beside) <= {"attention_maps"}  # a grid of panels, which scrolls within its box
    names = "[...document.querySelectorAll('[data-chart=dispersion] svg text')].map((text) => text.textContent)"
    assert {"softmax", "adaptive", "hardmax", "softmax at least"} <= set(opened.page.evaluate(names))
    if width >= 1100:  # the last columns of the first table can be reached
        assert opened.page.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(table)")


def test_a_phone_shows_everything_without_scrolling_sideways_and_the_sliders_below_their_chart(browser, report):
    phone = Opened(browser, report[0], viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
    wide = phone.page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((element) =>
          !element.closest(".chart > *, .scroll > *") && element.getBoundingClientRect().right > 390
        ).map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    boxes = phone.page.eval_on_selector_all(".chart, .scroll:not([hidden])", "(all) => all.map((b) => b.clientWidth)")
    assert min(boxes) > 340
    place = "(name) => document.querySelector(name).getBoundingClientRect()"
    chart, controls = (phone.page.evaluate(place, name) for name in ("[data-chart=playground]", "#controls-playground"))
    assert chart["bottom"] <= controls["top"] + 1
    assert phone.problems == []

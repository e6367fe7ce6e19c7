"""Opens the lab's report in headless Chromium, at the widths of a phone and a desk, light and dark, and checks what a reader sees.

    research/lab/tests/browser.rs ── writes a page with every figure
    this program ── chromium.py ──► Chromium: first line, figures with the papers' values, tables, colours, files to save, commands

Uses the standard library alone. Usage: report.py CHROMIUM FILE [DIRECTORY FOR PICTURES]
With MEMFERRY_TEST_ONCE set, only one width and scheme is tried: for pages that have to be refused.
"""

import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from chromium import Browser, Page  # noqa: E402

WIDTHS = {"phone": 390, "desk": 1280}

# Contrast of texts, with translucent backgrounds laid over each other; texts of charts against the chart's background.
CONTRASTS = """
(() => {
  const parts = colour => {
    const numbers = colour.match(/[\\d.]+/g).map(Number);
    const scale = colour.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map(part => part * scale), numbers.length > 3 ? numbers[3] : 1];
  };
  const light = colour => {
    const [r, g, b] = colour.map(part => part / 255).map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    const layers = [];
    for (; node; node = node.parentElement) {
      const layer = parts(getComputedStyle(node).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, [r, g, b, a]) => [r, g, b].map((part, at) => part * a + below[at] * (1 - a)), [255, 255, 255]);
  };
  const low = [];
  const tell = (node, one, other, least) => {
    const [a, b] = [light(one), light(other)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least) low.push(`${node.tagName} ${node.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  };
  for (const node of document.body.querySelectorAll("*")) {
    if (node instanceof SVGElement) continue;
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())) continue;
    tell(node, parts(getComputedStyle(node).color).slice(0, 3), behind(node), 4.5);
  }
  for (const chart of document.querySelectorAll("figure svg[role=img]")) {
    const ground = parts(getComputedStyle(chart.querySelector("rect")).fill).slice(0, 3);
    for (const text of chart.querySelectorAll("text")) tell(text, parts(getComputedStyle(text).fill).slice(0, 3), ground, 4.5);
    for (const line of chart.querySelectorAll(".beside line")) tell(line, parts(getComputedStyle(line).stroke).slice(0, 3), ground, 2);
  }
  return [...new Set(low)];
})()
"""

# What is wider than the window and cannot be scrolled within it; what may not be scrolled sideways at all.
TOO_WIDE = """
(width => {
  const wide = [];
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    if (node.ownerSVGElement || box.width === 0 || box.right <= width + 0.5) continue;
    const around = node.closest(".wide");
    const scrolls = around && around.getBoundingClientRect().right <= width + 0.5 && getComputedStyle(around).overflowX === "auto";
    if (!scrolls || node.matches(".checks, .predictions")) wide.push(`${node.tagName}.${node.className} ${node.textContent.trim().slice(0, 30)}`);
  }
  return wide;
})
"""

# Elements whose text goes beyond them.
SPILLS = """
[...document.body.querySelectorAll("*")]
  .filter(node => !node.ownerSVGElement && !node.closest(".wide") && node.clientWidth > 0 && node.scrollWidth > node.clientWidth + 1)
  .map(node => `${node.tagName}.${node.className} ${node.textContent.trim().slice(0, 40)}`)
"""

# One entry for each figure: what it has.
FIGURES = """
[...document.querySelectorAll("figure[id^=figure-]")].map(figure => {
  const seen = [...figure.querySelectorAll("svg[role=img]")].filter(svg => svg.checkVisibility());
  const scale = svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const within = svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll(".beside > line, .beside > path, text")].every(one => {
      const own = one.getBoundingClientRect();
      return own.left >= box.left - 1 && own.right <= box.right + 1 && own.top >= box.top - 1 && own.bottom <= box.bottom + 1;
    });
  };
  return {
    id: figure.id.slice("figure-".length),
    isOfAPaper: figure.closest("section:has(article.claim)") !== null,
    isDrawn: figure.querySelector("svg[role=img]") !== null,
    seen: seen.length,
    letters: seen.map(svg => Math.min(...[...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize))) * scale(svg)),
    drawn: seen.map(svg => [...svg.querySelectorAll(".beside > line, .beside > path")].filter(one => one.checkVisibility()).length),
    within: seen.every(within),
    listed: figure.querySelectorAll(".theirs li").length,
    none: figure.querySelector(".none")?.textContent ?? "",
    scale: figure.querySelector("input:checked + label")?.textContent ?? "",
    command: figure.querySelector("code.command")?.textContent ?? "",
    files: [...figure.querySelectorAll("a[download]")].map(link => [link.download, atob(link.href.split(";base64,")[1] ?? "").slice(0, 30)]),
  };
})
"""

BROKEN_PICTURES = """
[...document.querySelectorAll("a[download$='.svg']")].filter(link => {
  const text = new TextDecoder().decode(Uint8Array.from(atob(link.href.split(";base64,")[1]), letter => letter.charCodeAt(0)));
  return new DOMParser().parseFromString(text, "image/svg+xml").querySelector("parsererror");
}).map(link => link.download)
"""


def check_first_line(page):
    first = page.value("document.querySelector('header h1 + p').textContent")
    assert re.match(r"\d+ of \d+ predictions hold, \d+ fail, \d+ are undecided", first), f"the first line: {first}"
    rows = page.value("document.querySelectorAll('table.predictions tbody tr').length")
    assert rows >= 4, f"the table of predictions has {rows} papers"
    assert page.value("document.scripts.length") == 0, "a script"


def check_figures(page):
    figures = page.value(FIGURES)
    assert len(figures) > 40 and any(figure["isDrawn"] for figure in figures), "no figures"
    for figure in figures:
        name = figure["id"]
        if not figure["isDrawn"]:
            continue
        assert figure["seen"] >= 1, f"{name}: no chart is seen"
        assert all(height >= 8.5 for height in figure["letters"]), f"{name}: letters of {figure['letters']} pixels"
        assert figure["within"], f"{name}: a value of the paper or a text lies outside the chart"
        if figure["isOfAPaper"]:
            assert figure["listed"] > 0 or figure["none"], f"{name}: no value of the paper"
            assert (figure["listed"] > 0) != bool(figure["none"]), f"{name}: values and none"
        assert all(count == figure["listed"] for count in figure["drawn"]), f"{name}: {figure['drawn']} of {figure['listed']} values drawn"
        assert figure["command"] == f"./x lab --only {name} --out .", f"{name}: {figure['command']}"
        starts = dict(figure["files"])
        assert starts.get(f"{name}.csv", "").startswith("series,"), f"{name}: {starts}"
        assert starts.get(f"{name}.svg", "").startswith("<svg"), f"{name}: {starts}"
    assert page.value(BROKEN_PICTURES) == [], page.value(BROKEN_PICTURES)
    dip = next(figure for figure in figures if figure["id"] == "wicki-fig-11")
    assert dip["scale"] == "linear" and dip["seen"] == 2, f"figures 11 and 12: {dip}"


def check_switch(page):
    """The other scale is seen after a click, and the first one again."""
    seen = "[...document.querySelectorAll('#figure-wicki-fig-11 .zoom > div')].map(one => one.checkVisibility())"
    assert page.value(seen) == [True, False], page.value(seen)
    page.value("document.getElementById('zoom-wicki-fig-11-2').click()")
    assert page.value(seen) == [False, True], page.value(seen)
    page.value("document.getElementById('zoom-wicki-fig-11-1').click()")


def check(browser, url, scheme, name, pictures):
    page = Page(browser, scheme, WIDTHS[name], 900)
    page.call("Page.navigate", url=url)
    page.wait_for("document.readyState === 'complete' && document.querySelector('footer') !== null")
    page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    width = WIDTHS[name]
    wide = page.value(f"{TOO_WIDE}({width})")
    assert wide == [], f"too wide: {wide[:9]}"
    reach = page.value("document.documentElement.scrollWidth")
    assert reach <= width, f"the page is {reach} pixels wide, the window {width}: {page.value(SPILLS)[:9]}"
    back = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(back[:3]) > 380) == (scheme == "light"), back
    assert page.value(CONTRASTS) == [], f"contrast: {page.value(CONTRASTS)[:9]}"
    check_first_line(page)
    check_figures(page)
    check_switch(page)
    assert page.complaints() == [], page.complaints()
    assert page.addresses() == {url}, page.addresses()
    if pictures:
        page.value("document.querySelectorAll('details').forEach(one => one.open = false)")
        for part in ("wicki-fig-11", "nava-table-1"):
            page.value(f"document.getElementById('figure-{part}').scrollIntoView()")
            page.picture_of_window(f"{pictures}/{scheme}-{name}-{part}.png")
        page.value("scrollTo(0, 0)")
        page.picture_of_window(f"{pictures}/{scheme}-{name}.png")


def main():
    program, file = sys.argv[1:3]
    pictures = sys.argv[3] if len(sys.argv) > 3 else None
    if pictures:
        shutil.copy(file, pictures)
    url = pathlib.Path(file).resolve().as_uri()
    tries = [(scheme, name) for scheme in ("light", "dark") for name in WIDTHS]
    if "MEMFERRY_TEST_ONCE" in os.environ:
        tries = [("dark", "phone")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            for scheme, name in tries:
                try:
                    check(browser, url, scheme, name, pictures)
                except AssertionError as error:
                    print(f"{scheme}, {name}: {error}")
                    sys.exit(1)
            print("passed")
        finally:
            browser.end()


main()

"""Makes the pictures of the pages, in headless Chromium: a part of the dashboard's picture, the head of the lab's report, one of its plots.

    picture of the dashboard, report.html ── Chromium ──► dashboard.png, report.png, plot.png

Uses the standard library alone. Usage: pictures.py CHROMIUM DASHBOARD.PNG REPORT.HTML FOLDER
"""

import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
from chromium import Browser, Page  # noqa: E402

WIDTH = 1000
HEIGHT = 640
# Plots are the drawings of the report that are as wide as its text. With title and legend, if these are in one figure.
PLOT = """
(() => {
  const plots = [...document.querySelectorAll("svg")].filter(one => one.getBoundingClientRect().width > 400);
  if (!plots.length) return null;
  const box = (plots[0].closest("figure") ?? plots[0]).getBoundingClientRect();
  return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height};
})()
"""


def opened(browser, path):
    page = Page(browser, "light", WIDTH, HEIGHT)
    page.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
    page.wait_for("document.readyState === 'complete'")
    return page


def main():
    program, dashboard, report, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            page = opened(browser, dashboard)
            # The browser shows a picture that is larger than the page smaller.
            width = page.value("document.images[0].naturalWidth")
            page.resize(width, page.value("document.images[0].naturalHeight"))
            page.wait_for(f"innerWidth === {width} && document.images[0].width === {width}")
            scale = WIDTH / width
            page.picture(folder / "dashboard.png",
                         {"x": 0, "y": 0, "width": width, "height": HEIGHT / scale, "scale": scale})
            page = opened(browser, report)
            page.picture(folder / "report.png", {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
            box = page.value(PLOT)
            assert box, "the report has no plot"
            page.picture(folder / "plot.png", box)
        finally:
            browser.end()


main()

"""Opens the dashboard's page in headless Chromium and checks what a person would: figures, colours, keyboard, names, lost connections.

    tests/two-process/dashboard.rs ── starts a service, load and the dashboard
            │ ▲ lines: "shown", then what was ended or started ─► what the page says about it
            ▼ │
    this program ── chromium.py ──► Chromium

Uses the standard library alone. Usage: dashboard.py CHROMIUM URL [DIRECTORY FOR PICTURES]
"""

import json
import sys
import tempfile

sys.dont_write_bytecode = True
from chromium import CONTRASTS, Browser, Page  # noqa: E402


def check_figures(page):
    page.wait_for("document.querySelector('#classes tbody tr:nth-child(2) td')?.textContent.includes('iB/s')")
    page.wait_for("document.querySelector('#latencies tbody td')?.textContent.match(/[µm]?s$/)")
    figures = "document.querySelector('#workers tbody').innerText + document.getElementById('summary').innerText"
    before = page.value(figures)
    page.wait_for(f"({figures}) !== {json.dumps(before)}")
    page.wait_for("document.querySelector('#classes polyline').getAttribute('points').split(' ').length >= 2")
    refused = "[...document.querySelectorAll('#refusals tr')].find(row => row.innerText.includes('quota')).children[2].textContent"
    assert page.value(refused) == "1", page.value(refused)
    assert page.value("document.querySelectorAll('#clients tbody tr').length") == 1


def check_names(page):
    """What a screen reader says: every control, table and picture has a name, and only the state is announced."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {}
    for node in nodes:
        if node.get("ignored"):
            continue
        role = node["role"]["value"]
        roles.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    for role in ("button", "combobox", "table", "image", "region", "link", "rowheader"):
        assert roles.get(role), f"{role}: none of {sorted(roles)}"
    for role in ("button", "combobox", "table", "image", "region", "link"):
        assert all(name.strip() for name in roles[role]), (role, roles[role])
    assert page.value("document.querySelectorAll('[aria-live], [role=status], [role=alert]').length") == 1


def check_keyboard(page):
    controls = "[...document.querySelectorAll('a[href], button, select, [tabindex=\"0\"]')].filter(one => one.checkVisibility())"
    count = page.value(f"{controls}.length")
    reached = set()
    for _ in range(count + 2):
        page.press("Tab", 9)
        place = page.value(f"{controls}.indexOf(document.activeElement)")
        if place >= 0:
            reached.add(place)
            outline = page.value("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"control {place} shows no focus"
    assert reached == set(range(count)), (reached, count)
    page.value("document.getElementById('pause').focus()")
    page.press(" ", 32, " ")
    page.state_is("Paused")
    assert page.value("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    page.press("Enter", 13, "\r")
    page.state_is("Live")


def check_scheme(browser, url, scheme, pictures):
    page = Page(browser, scheme)
    page.call("Page.navigate", url=url)
    page.state_is("Live")
    check_figures(page)
    back = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(back[:3]) > 380) == (scheme == "light"), back
    assert page.value(CONTRASTS) == [], page.value(CONTRASTS)
    check_names(page)
    check_keyboard(page)
    for width in (1280, 390):
        page.resize(width, 900)
        page.wait_for(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
        if pictures:
            page.picture(f"{pictures}/{scheme}-{width}.png")
    assert page.complaints() == [], page.complaints()
    assert page.addresses() == {url, f"{url}events"}, page.addresses()
    # The policy holds: what a text smuggled in could not run or load.
    page.value("document.body.appendChild(document.createElement('script')).textContent = 'window.ran = true'; 0")
    page.value("document.body.lastChild.remove()")
    assert page.value("window.ran === undefined")
    return page


def main():
    program, url = sys.argv[1:3]
    pictures = sys.argv[3] if len(sys.argv) > 3 else None

    def next_step(done, expected):
        print(done, flush=True)
        line = sys.stdin.readline().strip()
        assert line == expected, line

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            check_scheme(browser, url, "light", pictures)
            page = check_scheme(browser, url, "dark", pictures)
            next_step("shown", "the service is gone")
            page.state_is("does not answer")
            assert page.value(CONTRASTS) == [], page.value(CONTRASTS)
            if pictures:
                page.resize(1280, 900)
                page.picture(f"{pictures}/gone.png")
            next_step("noticed", "the dashboard is gone")
            page.state_is("connection is lost")
            next_step("noticed", "all are back")
            page.state_is("Live")
            print("passed", flush=True)
        finally:
            browser.end()


main()

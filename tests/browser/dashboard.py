"""Opens the dashboard's page in headless Chromium and checks what a person would: figures, colours, keyboard, names, lost connections.

    tests/two-process/dashboard.rs ── starts a service, load and the dashboard
            │ ▲ lines: "shown", then what was ended or started ─► what the page says about it
            ▼ │
    this program ── DevTools protocol over a pair of pipes ──► Chromium

Uses the standard library alone. Usage: dashboard.py CHROMIUM URL [DIRECTORY FOR PICTURES]
"""

import base64
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

SECONDS = 40

CONTRASTS = """
(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = parts(colour).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const low = [];
  for (const node of document.body.querySelectorAll("*")) {
    if (["SCRIPT", "NOSCRIPT"].includes(node.tagName)) continue;
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())) continue;
    const [one, two] = [light(getComputedStyle(node).color), light(behind(node))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
})()
"""


class Browser:
    """Chromium, spoken to over pipes: messages of JSON that end with a zero byte."""

    def __init__(self, program, profile):
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()

        def connect():
            # Away from 3 and 4 first, where either may lie.
            pair = [os.dup(to_browser), os.dup(from_browser)]
            high = [os.dup2(end, 60 + place) for place, end in enumerate(pair)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                   "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([program, *options], preexec_fn=connect, close_fds=False, **quiet)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        self.events = []

    def receive(self, until):
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.from_browser], [], [], left)[0]:
                raise TimeoutError("Chromium is silent")
            piece = os.read(self.from_browser, 1 << 16)
            if not piece:
                raise EOFError("Chromium ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def end(self):
        self.process.kill()
        self.process.wait()


class Page:
    def __init__(self, browser, scheme, width=1280, height=1000):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.resize(width, height)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self.value(script):
                return
            # The page changes once a second.
            time.sleep(0.1)
        raise TimeoutError(f"{script}: never true; the page says {self.value('document.body.innerText')}")

    def state_is(self, text):
        self.wait_for(f"document.getElementById('state')?.textContent.includes({json.dumps(text)})")

    def press(self, key, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key if key != " " else "Space",
                      windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def picture(self, path, box=None):
        if box is None:
            height = self.value("document.documentElement.scrollHeight")
            box = {"x": 0, "y": 0, "width": self.value("innerWidth"), "height": height}
        clip = {"scale": 1, **box}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def complaints(self):
        """Errors in the console, violations of the policy, failed loads, and what was loaded from elsewhere."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, what = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(what["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                found.append(what["args"])
            elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append(what["entry"])
        return found

    def addresses(self):
        sent = [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith("data:")}


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


if __name__ == "__main__":
    main()

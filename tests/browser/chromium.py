"""Headless Chromium, driven by its DevTools protocol over a pair of pipes: what the checks of pages share.

    a check of a page ── Browser, Page ── messages of JSON ──► Chromium

Uses the standard library alone.
"""

import base64
import json
import os
import pathlib
import select
import subprocess
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

    def picture_of_window(self, path):
        data = self.call("Page.captureScreenshot")["data"]
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

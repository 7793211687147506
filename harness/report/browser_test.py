#!/usr/bin/env python3
"""Opens a report in headless Chromium at phone and desktop width and checks what a reader would see.

    browser_test.py PAGE_MAKER [--keep DIR]

No script error, no request, every figure drawn, no horizontal scrolling of the page, filter and
sorting at work. Exit 77 (skipped) when Chromium or its driver is not installed.
"""
import argparse
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SKIPPED = 77
WIDTHS = (390, 1280)

LOOK = """
const figures = [...document.querySelectorAll("figure svg")].map((svg) => {
  const drawn = [...svg.querySelectorAll("use, path, rect, text")].map((e) => e.getBoundingClientRect());
  const box = svg.getBoundingClientRect();
  return {width: box.width, height: box.height, right: box.right,
          parts: drawn.filter((b) => b.width > 0 && b.height > 0).length};
});
const wide = [...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll") && !e.closest("svg")
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
return {figures, scroll: document.documentElement.scrollWidth, client: document.documentElement.clientWidth,
        wide: wide.slice(0, 5).map((e) => e.tagName + "." + e.className),
        requests: performance.getEntriesByType("resource").map((e) => e.name),
        verdict: document.querySelector("h1").textContent,
        failures: document.querySelectorAll(".failures li").length,
        filters: document.querySelectorAll("input.filter").length,
        rows: document.querySelectorAll("table.cases tbody tr").length};
"""

USE = """
const table = document.querySelector("table.cases"), input = document.querySelector("input.filter");
const shown = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const all = shown().length;
input.value = "fail";
input.dispatchEvent(new Event("input"));
const failed = shown().length;
input.value = "";
input.dispatchEvent(new Event("input"));
const heads = [...table.tHead.rows[0].cells], column = heads.findIndex((head) => head.textContent === "bytes");
const values = () => shown().map((row) => Number(row.cells[column].textContent));
const button = heads[column].querySelector("button");
button.click();
const up = values();
button.click();
return {all, failed, again: shown().length, up, down: values()};
"""


class Driver:
    """What is needed of the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

    def __init__(self, chromium, chromedriver):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([chromedriver, f"--port={port}"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                if self.call("GET", "/status")["ready"]:
                    break
            except (urllib.error.URLError, ConnectionError):
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("chromedriver does not answer")
            time.sleep(0.1)
        options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                                                "--disable-dev-shm-usage", "--hide-scrollbars"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options,
                                                   "goog:loggingPrefs": {"browser": "ALL"}}}}
        self.session = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def devtools(self, command, **parameters):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, page, width, dark=False):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1,
                      mobile=width < 600)
        scheme = "dark" if dark else "light"
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("POST", self.session + "/url", {"url": "file://" + page})

    def log(self):
        return self.call("POST", self.session + "/se/log", {"type": "browser"})

    def screenshot(self, path):
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        try:
            self.call("DELETE", self.session)
        except (AttributeError, urllib.error.URLError, ConnectionError):
            pass
        self.process.terminate()
        self.process.wait(timeout=20)


def check(driver, page, figures, keep):
    wrong = []

    def expect(right, what):
        if not right:
            wrong.append(what)

    for width in WIDTHS:
        for dark in (False, True):
            driver.open(page, width, dark)
            at = f"{width} px, {'dark' if dark else 'light'}"
            seen = driver.run(LOOK)
            errors = [entry["message"] for entry in driver.log() if entry["level"] == "SEVERE"]
            expect(not errors, f"{at}: the browser reports {errors}")
            expect(not seen["requests"], f"{at}: the page asks for {seen['requests']}")
            expect(seen["scroll"] <= seen["client"], f"{at}: the page is {seen['scroll']} px wide: {seen['wide']}")
            expect(seen["client"] == width, f"{at}: laid out for {seen['client']} px")
            expect(len(seen["figures"]) == figures or figures < 0, f"{at}: {len(seen['figures'])} figures, not {figures}")
            for number, figure in enumerate(seen["figures"]):
                drawn = figure["width"] > 100 and figure["height"] > 50 and figure["parts"] > 0
                expect(drawn and figure["right"] <= width, f"{at}: figure {number + 1} is not drawn: {figure}")
            expect(seen["verdict"] in ("ACCEPTED", "REJECTED"), f"{at}: no verdict but {seen['verdict']!r}")
            expect(seen["rows"] > 0, f"{at}: no case in any table")
            if keep:
                driver.screenshot(os.path.join(keep, f"report-{width}-{'dark' if dark else 'light'}.png"))
    if figures >= 0:  # of the example, whose content is known
        used = driver.run(USE)
        expect(used["failed"] == 2 and used["again"] == used["all"], f"the filter: {used}")
        expect(used["up"] == sorted(used["up"]), f"sorting by bytes: {used['up']}")
        expect(used["down"] == sorted(used["up"], reverse=True), f"sorting down: {used['down']}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maker", help="program that writes a run and its report into the folder it is given, or a page")
    parser.add_argument("--keep", metavar="DIR", help="where screenshots go")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        print("skipped: needs Debian's chromium and chromium-driver")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        page, figures = os.path.abspath(arguments.maker), -1
        if not page.endswith(".html"):
            page, figures = os.path.join(folder, "run", "report.html"), 3
            subprocess.run([arguments.maker, os.path.dirname(page)], check=True, stdout=subprocess.DEVNULL)
        if arguments.keep:
            os.makedirs(arguments.keep, exist_ok=True)
        driver = Driver(chromium, chromedriver)
        try:
            wrong = check(driver, page, figures, arguments.keep)
        finally:
            driver.close()
    for line in wrong:
        print(line)
    print("browser_test: wrong" if wrong else "browser_test: the page reads well at " + " and ".join(f"{w} px" for w in WIDTHS))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

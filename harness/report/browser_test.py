#!/usr/bin/env python3
"""Opens a report in headless Chromium at phone and desktop width and checks what a reader would see.

    browser_test.py PAGE_MAKER [--keep DIR] [--axe]

No script error, no request except for figures that were opened, every figure drawn, no horizontal
scrolling of the page, search, filter, sorting and printing at work. With --axe: no violation of
axe-core's rules for accessibility, in place of the rest. Exit 77 (skipped) when Chromium, its driver
or, with --axe, axe-core is not installed.
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
DEADLINE_S = 120  # of one script in the browser

LOOK = """
const figures = [...document.querySelectorAll("figure img")].map((image) => {
  const box = image.getBoundingClientRect();
  return {name: image.alt, loaded: image.complete && image.naturalWidth > 0, width: box.width, height: box.height,
          right: box.right, shape: image.naturalHeight / image.naturalWidth};
});
const wide = [...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll") && !e.closest("svg")
  && !e.closest(".hidden") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
return {figures, scroll: document.documentElement.scrollWidth, client: document.documentElement.clientWidth,
        wide: wide.slice(0, 5).map((e) => e.tagName + "." + e.className),
        verdict: document.querySelector("h1").textContent,
        failures: document.querySelectorAll(".failures li").length,
        rows: document.querySelectorAll("table.cases tbody tr").length};
"""

OPEN_ALL = """
document.querySelectorAll("details").forEach((part) => part.open = true);
document.querySelectorAll("figure img").forEach((image) => image.loading = "eager");
"""
ALL_LOADED = "return [...document.querySelectorAll('figure img')].every((image) => image.complete)"

USE = """
const table = document.querySelector("table.cases"), input = table.closest("details").querySelector("input.filter");
const shown = (rows) => [...rows].filter((row) => !row.hidden);
const type = (field, text) => { field.value = text; field.dispatchEvent(new Event("input")); };
const rows = table.tBodies[0].rows, all = shown(rows).length;
type(input, "fail");
const failed = shown(rows).length;
type(input, "");
const heads = [...table.tHead.rows[0].cells], column = heads.findIndex((head) => head.textContent === "bytes");
const values = () => shown(rows).map((row) => Number(row.cells[column].textContent));
const button = heads[column].querySelector("button");
button.click();
const up = values(), sorted = heads[column].getAttribute("aria-sort");
button.click();
const units = document.querySelector("table.units"), search = document.querySelector("#units input.filter");
const names = () => shown(units.tBodies[0].rows).map((row) => row.cells[0].textContent);
type(search, "gemm");
const found = names(), parts = [...document.querySelectorAll("details.unit")].filter((part) => !part.hidden).length;
type(search, "needs a network");
const by_case = names();
type(search, "");
const part = document.querySelector("details.unit:not([open])");
if (part) location.hash = "#" + part.id;
const sparks = [...document.querySelectorAll("svg.spark polyline")].map((line) => line.getBoundingClientRect().width);
return {all, failed, again: shown(rows).length, up, down: values(), sorted, found, parts, by_case, sparks,
        folded: part ? part.id : ""};
"""

PRINT = """
window.dispatchEvent(new Event("beforeprint"));
const cut = [...document.querySelectorAll("table")].filter((e) => e.getClientRects().length
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
const folded = document.querySelectorAll("details.unit:not([open])").length;
window.dispatchEvent(new Event("afterprint"));
return {cut: cut.map((e) => e.parentNode.getAttribute("aria-label")), folded,
        again: document.querySelectorAll("details.unit:not([open])").length};
"""

AXE_FILES = ("axe_selenium_python/node_modules/axe-core/axe.min.js", "axe_playwright_python/axe.min.js")


def axe_source():
    """The text of axe-core (Mozilla Public License), or None: of $SHARDMARK_AXE or of a Python package."""
    paths = [os.environ["SHARDMARK_AXE"]] if "SHARDMARK_AXE" in os.environ else []
    paths += [os.path.join(folder, file) for folder in sys.path for file in AXE_FILES]
    for path in paths:
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
    return None


class Driver:
    """The used part of the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

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
                                                   "timeouts": {"script": 1000 * DEADLINE_S},
                                                   "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}}
        self.session = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def run_until_called(self, script):
        """Runs a script that calls its last argument with the result."""
        return self.call("POST", self.session + "/execute/async", {"script": script, "args": []})

    def wait_for(self, script, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.run(script) and time.monotonic() < deadline:
            time.sleep(0.05)

    def devtools(self, command, **parameters):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, page, width, dark=False, media=""):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1,
                      mobile=width < 600)
        scheme = "dark" if dark else "light"
        self.devtools("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("POST", self.session + "/url", {"url": "file://" + page})

    def log(self):
        return self.call("POST", self.session + "/se/log", {"type": "browser"})

    def requests(self):
        """The addresses that were requested since the last call."""
        log = self.call("POST", self.session + "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in log]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

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
            driver.requests()
            driver.open(page, width, dark)
            at = f"{width} px, {'dark' if dark else 'light'}"
            folded = driver.run(LOOK)
            asked = [one.split("#")[0] for one in driver.requests()]
            expect(asked == ["file://" + page], f"{at}: the folded page asks for {asked}")
            if keep:
                driver.screenshot(os.path.join(keep, f"report-{width}-{'dark' if dark else 'light'}.png"))
            driver.run(OPEN_ALL)
            driver.wait_for(ALL_LOADED)
            opened = driver.run(LOOK)
            errors = [entry["message"] for entry in driver.log() if entry["level"] == "SEVERE"]
            expect(not errors, f"{at}: the browser reports {errors}")
            place = "file://" + os.path.dirname(page) + "/figures/"
            asked = driver.requests()
            expect(asked or not figures, f"{at}: no request for a figure")
            expect(all(one.startswith(place) for one in asked), f"{at}: asks for {asked}")
            for seen, how in ((folded, "folded"), (opened, "opened")):
                expect(seen["scroll"] <= seen["client"], f"{at}, {how}: {seen['scroll']} px wide: {seen['wide']}")
                expect(seen["client"] == width, f"{at}, {how}: laid out for {seen['client']} px")
            expect(len(opened["figures"]) == figures or figures < 0, f"{at}: {len(opened['figures'])} figures, not {figures}")
            for figure in opened["figures"]:
                drawn = figure["loaded"] and figure["width"] > 100 and figure["right"] <= width
                expect(drawn, f"{at}: not drawn: {figure}")
                expect(drawn and abs(figure["height"] / figure["width"] / figure["shape"] - 1) < 0.02,
                       f"{at}: distorted: {figure}")
            expect(folded["verdict"] in ("ACCEPTED", "REJECTED"), f"{at}: no verdict but {folded['verdict']!r}")
            expect(folded["rows"] > 0, f"{at}: no case in any table")
    if figures >= 0:  # the content of the example is known
        used = driver.run(USE)
        expect(used["failed"] == 2 and used["again"] == used["all"], f"the filter: {used}")
        expect(used["up"] == sorted(used["up"]) and used["sorted"] == "ascending", f"sorting by bytes: {used}")
        expect(used["down"] == sorted(used["up"], reverse=True), f"sorting down: {used['down']}")
        expect(used["found"] == ["gemm"] and used["parts"] == 1, f"the search for a unit: {used}")
        expect(len(used["by_case"]) == 1, f"the search for a case: {used['by_case']}")
        expect(used["sparks"] and min(used["sparks"]) > 40, f"sparklines: {used['sparks']}")
    driver.open(page, 1000, media="print")
    before = driver.run("return document.querySelectorAll('details.unit:not([open])').length")
    printed = driver.run(PRINT)
    expect(not printed["cut"], f"on paper these tables are cut: {printed['cut']}")
    expect(printed["folded"] == 0 and printed["again"] == before, f"printing: {printed}, before: {before}")
    return wrong


def check_access(driver, page, axe):
    wrong = []
    for width in WIDTHS:
        for dark in (False, True):
            driver.open(page, width, dark)
            for how, script in (("folded", ""), ("opened", OPEN_ALL)):
                driver.run(script)
                driver.run(axe + "; window.axe = axe;")
                for rule, about, nodes in driver.run_until_called(
                        "const done = arguments[0]; axe.run().then((result) => done(result.violations.map("
                        "(v) => [v.id, v.help, v.nodes.map((n) => n.html.slice(0, 120))])));"):
                    wrong.append(f"{width} px, {'dark' if dark else 'light'}, {how}: {rule}: {about}: {nodes[:3]}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maker", help="program that writes a run and its report into the folder it is given, or a page")
    parser.add_argument("--keep", metavar="DIR", help="where screenshots go")
    parser.add_argument("--axe", action="store_true", help="check accessibility with axe-core")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        print("skipped: needs Debian's chromium and chromium-driver")
        return SKIPPED
    axe = axe_source() if arguments.axe else None
    if arguments.axe and not axe:
        print("skipped: needs axe-core: pip install axe-selenium-python, or SHARDMARK_AXE=PATH/axe.min.js")
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
            wrong = check_access(driver, page, axe) if axe else check(driver, page, figures, arguments.keep)
        finally:
            driver.close()
    for line in wrong:
        print(line)
    well = "no violation of axe-core's rules" if axe else "the page reads well"
    print("browser_test: wrong" if wrong else f"browser_test: {well} at " + " and ".join(f"{w} px" for w in WIDTHS))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

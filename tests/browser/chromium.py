"""A headless Chromium, and the explorer as its user sees it."""

import contextlib
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

AXE = Path(__file__).parents[2] / ".venv/axe-core/axe.min.js"
INSTALL = "tests/browser/install.sh installs it"
DESKTOP, PHONE = (1280, 900), (360, 740)
WAIT_SECONDS = 20
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--no-first-run", "--lang=en",
)  # fmt: skip


def missing(what: str) -> None:
    """Skip the test, but where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI=true; {INSTALL}")
    pytest.skip(f"{what} is missing; {INSTALL}")


@contextlib.contextmanager
def open_chromium() -> Iterator["Page"]:
    """A browser; it is ended with the context."""
    try:
        from selenium import webdriver
    except ImportError:
        missing("selenium")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing("chromium" if binary is None else "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)  # given, so that nothing is searched on the network
    browser = webdriver.Chrome(options, service)
    try:
        browser.set_script_timeout(WAIT_SECONDS)
        yield Page(browser)
    finally:
        browser.quit()


class Page:
    """The explorer at `url` in a browser."""

    def __init__(self, driver):
        self.driver = driver
        self.url = ""

    def open(self, address: str = "#/") -> None:
        """Load the page with the part `address` after #, and wait for its answers."""
        self.driver.get("about:blank")  # else only the part after # changes
        self.driver.get(f"{self.url}/{address}")
        self.settle()

    def go(self, address: str) -> None:
        """Change the part of the address after #, and wait for the view."""
        self.run("document.querySelector('main h1').classList.add('old')")
        self.run("location.hash = arguments[0]", address)
        self.until(lambda: not self.all("h1.old"), "there is another view")
        self.settle()

    def settle(self) -> None:
        self.until(
            lambda: self.all("main h1") and not self.all("[aria-busy=true]"),
            "all answers are shown",
        )

    def until(self, condition: Callable[[], object], what: str):
        """Wait until `condition()` holds and return its value."""
        from selenium.common.exceptions import StaleElementReferenceException

        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(StaleElementReferenceException):
                if found := condition():
                    return found
            time.sleep(0.03)
        raise AssertionError(f"not within {WAIT_SECONDS} s: {what}; the page says: {self.text()}")

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str):
        """The only element, as soon as there is one."""
        (found,) = self.until(lambda: self.all(selector), f"{selector} is there")
        return found

    def texts(self, selector: str) -> list[str]:
        """The texts of elements, those for screen readers included."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.run(script, selector)

    def text(self) -> str:
        return self.run("return document.querySelector('main')?.innerText ?? ''")

    def items(self, selector: str) -> list[str]:
        """The keys of the items that are linked below `selector`."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].flatMap((one) => "
            "[...one.querySelectorAll('a[data-item]')].map((link) => link.dataset.item))"
        )
        return self.run(script, selector)

    def await_heading(self, words: str) -> None:
        self.until(lambda: words in "".join(self.texts("main h1")), f"the heading is {words!r}")
        self.settle()

    def field(self, label: str):
        """The text field, slider or select with this label."""
        script = (
            "return [...document.querySelectorAll('input, select, textarea')]"
            ".find((one) => [...one.labels].some((label) => label.textContent === arguments[0]))"
        )
        return self.until(lambda: self.run(script, label), f"there is a field {label!r}")

    def suggestions(self, label: str) -> list[str]:
        """The suggestions below a field, as soon as there are some."""
        name = self.field(label).get_attribute("id")
        return self.until(
            lambda: self.texts(f"#{name}-list [role=option]"), "there are suggestions"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        return self.run("return document.activeElement.textContent")

    def command(self, name: str, **parameters) -> None:
        """A command of the Chrome DevTools protocol."""
        self.driver.execute_cdp_cmd(name, parameters)

    @contextlib.contextmanager
    def before_every_page(self, script: str) -> Iterator[None]:
        """Run `script` before those of the pages that are loaded in this context."""
        name = "Page.addScriptToEvaluateOnNewDocument"
        found = self.driver.execute_cdp_cmd(name, {"source": script})
        yield
        self.command("Page.removeScriptToEvaluateOnNewDocument", **found)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def colours(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def ask(self, path: str, **query: object):
        """An answer of the server, without the browser."""
        with urllib.request.urlopen(f"{self.url}/explorer/{path}?{urlencode(query)}") as answer:
            return json.load(answer)

    def errors(self) -> list[str]:
        """What the browser's console has said since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def accessibility(self, *rules: str) -> list[str]:
        """What axe-core finds serious or critical."""
        if not AXE.exists():
            missing("axe-core")
        if not self.run("return typeof axe !== 'undefined'"):
            self.run(AXE.read_text())
        script = (
            "const [rules, done] = arguments;"
            "const options = {resultTypes: ['violations']};"
            "if (rules.length) options.runOnly = rules;"
            "axe.run(document, options).then((found) => done(found.violations))"
        )
        return [
            f"{found['impact']}: {found['help']}: {found['nodes'][0]['html']}"
            for found in self.driver.execute_async_script(script, rules)
            if found["impact"] in ("serious", "critical")
        ]


def user(key: str) -> str:
    return f"#/user/{quote(key, safe='')}"


def item(key: str) -> str:
    return f"#/item/{quote(key, safe='')}"


def history(*keys: str) -> str:
    return f"#/try/{','.join(quote(key, safe='') for key in keys)}"

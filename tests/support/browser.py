"""A headless Chromium, driven through its chromedriver; both are Debian's packages `chromium` and `chromium-driver`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; the test is skipped, with the reason, where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="browsers are driven with selenium, extra `dev`")
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options, Service(driver))
    try:
        yield Browser(session)
    finally:
        session.quit()


class Browser:
    """A browser window. `driver` is selenium's."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, page: Path, width: int = 1400, scheme: str = "light") -> None:
        """Load a page in a window of a width, with a colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(page.resolve().as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script and return its result."""
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        """Return the console's messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        from selenium.webdriver import ActionChains, Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def roles(self) -> list[tuple[str, str]]:
        """Return the (role, name) of everything that the browser tells assistive software of."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

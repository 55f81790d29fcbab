"""The real browser: headless Chromium through Playwright, on the portal that a server on loopback shows.

One Chromium serves all tabs of the process; it starts at the first tab, in a thread of its own (Playwright's blocking interface must not
run inside an event loop), and ends with the process. Every tab is a context of its own: no cookies, cache or storage are shared. The extra
`browser` installs the package `playwright`; the browser itself comes from the system (`chromium`, or the path in COEVO_CHROMIUM).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import queue
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from coevo.errors import InfraError, PrerequisiteError, boundary
from coevo.tasks.browser.dom import CONTROLS, Element, Live, Node, from_tree
from coevo.tasks.browser.portal import Changes, Portal, PortalSite, canonical
from coevo.tasks.loopback import loopback

__all__ = ["ChromiumTab", "chromium_path", "why_no_chromium"]

TIMEOUT_S = 120.0
"""Of one action of the browser. It takes tenths of a second; a busy machine was seen to stall it for more than 30 s."""

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking", "--no-first-run")
"""Without the setuid sandbox, which containers lack: the only pages are our own, on loopback."""
_TREE = """() => {
  const take = node => {
    if (node.nodeType === 3) return node.data;
    if (node.nodeType !== 1) return null;
    const tag = node.tagName.toLowerCase(), attrs = {};
    for (const one of node.attributes) attrs[one.name] = one.value;
    if (tag === 'input') { attrs.value = node.value; delete attrs.checked; if (node.checked) attrs.checked = ''; }
    if (tag === 'select') attrs.value = node.value;
    if (tag === 'dialog') { delete attrs.open; if (node.open) attrs.open = ''; }
    return [tag, attrs, [...node.childNodes].map(take).filter(one => one !== null)];
  };
  return [location.href, take(document.body)];
}"""
_Result = TypeVar("_Result")


def chromium_path() -> str | None:
    """The browser: the path in COEVO_CHROMIUM, or the first known name on PATH; None where there is none."""
    named = os.environ.get("COEVO_CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def why_no_chromium() -> str | None:
    """What is missing for the real browser, with the command that installs it; None when it can start."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is missing (pip install 'coevo[browser]')"
    if chromium_path() is None:
        return "no Chromium on PATH (Debian: apt-get install chromium; or set COEVO_CHROMIUM)"
    return None


class _Driver:
    """Chromium in a thread of its own; calls are handed over and waited for."""

    def __init__(self) -> None:
        missing = why_no_chromium()
        if missing:
            raise PrerequisiteError("the Chromium backend can't start", seen=missing, fix="install it, or use the in-process backend")
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="chromium", daemon=True)
        self._thread.start()
        with boundary(InfraError, "Chromium did not start"):
            ready.result(timeout=TIMEOUT_S)
        atexit.register(self.stop)

    def do(self, call: Callable[[Any], _Result]) -> _Result:
        """Run `call(browser)` in the browser's thread. Raises `InfraError` for whatever goes wrong there."""
        result: Future[_Result] = Future()
        self._calls.put((call, result))
        with boundary(InfraError, "Chromium failed"):
            return result.result(timeout=2 * TIMEOUT_S)

    def stop(self) -> None:
        """End the browser."""
        self._calls.put(None)
        self._thread.join(timeout=TIMEOUT_S)

    def _run(self, ready: Future[None]) -> None:
        from playwright.sync_api import sync_playwright

        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium_path(), headless=True, args=list(_ARGUMENTS))
                ready.set_result(None)
                for item in iter(self._calls.get, None):
                    self._serve(browser, *item)
                browser.close()
        except Exception as error:  # noqa: BLE001 - whoever waits for the browser must hear of it
            if not ready.done():
                ready.set_exception(error)

    def _serve(self, browser: Any, call: Callable[[Any], Any], result: Future[Any]) -> None:
        try:
            result.set_result(call(browser))
        except Exception as error:  # noqa: BLE001 - handed to the caller, who attributes it
            result.set_exception(error)


@lru_cache(maxsize=1)
def _driver() -> _Driver:
    return _Driver()


class ChromiumTab:
    """One tab in a context of its own; see `coevo.tasks.browser.tab.Tab`."""

    def __init__(self, portal: Portal, changes: Changes) -> None:
        self._server = loopback()
        self._session = self._server.open(PortalSite(portal, changes))
        self._base = f"http://127.0.0.1:{self._server.port}/{self._session}"
        self._page: Any = _driver().do(self._start)
        self._seen = self._look()

    def address(self) -> str:
        """Where it is."""
        return self._seen[0]

    def tree(self) -> Node:
        """The page with its present values and open dialogs."""
        return self._seen[1]

    def live(self) -> Live:
        """Nothing: the tree carries it."""
        return Live()

    def open(self, address: str) -> None:
        """Load a page."""
        target = self._base + canonical(address)
        self._do(lambda: self._page.goto(target))

    def click(self, element: Element) -> None:
        """Click, and wait for the page that comes of it."""
        local = element.kind == "box" or "data-dialog" in element.node.attrs or "data-close" in element.node.attrs

        def run() -> None:
            if local:
                self._control(element).click()
                return
            with self._page.expect_navigation():
                self._control(element).click()

        self._do(run)

    def enter(self, element: Element, text: str) -> None:
        """Fill a text field."""
        self._do(lambda: self._control(element).fill(text))

    def choose(self, element: Element, option: str) -> None:
        """Choose an option of a list."""
        self._do(lambda: self._control(element).select_option(option))

    def close(self) -> None:
        """End the tab and its session."""
        _driver().do(lambda _: self._page.context.close())
        self._server.close(self._session)

    def _start(self, browser: Any) -> Any:
        page = browser.new_context(service_workers="block").new_page()
        page.set_default_timeout(TIMEOUT_S * 1000)
        page.goto(f"{self._base}/")
        return page

    def _do(self, call: Callable[[], Any]) -> None:
        """Act, then look at what has become of the page."""
        _driver().do(lambda _: call())
        self._seen = self._look()

    def _look(self) -> tuple[str, Node]:
        """Address and tree of the page, in one question to the browser."""
        url, tree = _driver().do(lambda _: self._page.evaluate(_TREE))
        return self._address(url), from_tree(tree)

    def _control(self, element: Element) -> Any:
        return self._page.locator("body").locator(",".join(CONTROLS)).nth(element.node.index)

    def _address(self, url: str) -> str:
        parts = urlsplit(url)
        path = parts.path.removeprefix(f"/{self._session}") or "/"
        return canonical(f"{path}?{parts.query}" if parts.query else path)

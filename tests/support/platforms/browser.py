"""Debian's Chromium on a page of the platform, with its console messages, requests and policy violations."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.waiting import PATIENCE_S

# A sandbox needs rights that containers lack. The other arguments stop the browser's own requests to other servers.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""

# Text below the contrast of WCAG AA, 4.5; disabled controls are exempt there too.
LOW_CONTRAST = """
() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (s) => (s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((each) => linear(each / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parts(getComputedStyle(each).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const compare = (element, text, part) => {
    if (!text.trim() || !element.checkVisibility() || element.disabled) return;
    const pair = [parts(getComputedStyle(element, part).color), behind(element)].map(luminance);
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) found.push(`${text.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) compare(walker.currentNode.parentElement, walker.currentNode.textContent);
  for (const each of document.querySelectorAll("[placeholder]")) compare(each, each.placeholder, "::placeholder");
  return found;
}
"""

# Elements without a name for a screen reader, and references to elements that do not exist.
UNNAMED = """
() => {
  const missing = (selector, named) =>
    [...document.querySelectorAll(selector)].filter((each) => !named(each)).map((each) => each.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const known = (list) => (list ?? "").split(" ").every((id) => !id || document.getElementById(id));
  return [
    ...missing("input, select, textarea", (each) => each.labels.length > 0),
    ...missing("button, h1, h2, h3, label, th", (each) => each.textContent.trim()),
    ...missing("th", (each) => each.scope),
    ...missing("[role=img], [role=region]", (each) => each.ariaLabel || each.hasAttribute("aria-labelledby")),
    ...missing("svg", (each) => each.closest("[aria-hidden=true]")),
    ...missing("[aria-labelledby], [aria-describedby], [aria-controls]", (each) =>
      ["aria-labelledby", "aria-describedby", "aria-controls"].every((name) => known(each.getAttribute(name)))),
    ...ids.filter((id, index) => ids.indexOf(id) !== index),
    ...(document.documentElement.lang && document.title ? [] : ["lang or title"]),
  ];
}
"""


@dataclass(slots=True)
class Watched:
    """A page, with its console errors and its requests."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def strays(self) -> list[str]:
        """Return requests to servers other than the page's own."""
        return [url for url in self.requests if not url.startswith((f"{self.origin}/", "data:"))]

    def violations(self) -> list[str]:
        """Return the directives of the page's policy that it violated."""
        found: list[str] = self.page.evaluate("window.violations")
        return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser; skip the test if Chromium is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium here: `make browser` installs Debian's, or install the package chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS), timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, origin: str, **options: Any) -> Iterator[Watched]:
    """Open `/` of `origin` in its own window, with options of Playwright's contexts."""
    context = browser.new_context(**options)
    # Instead of Playwright's 5 s for an expectation and 30 s for an action.
    expect.set_options(timeout=PATIENCE_S * 1000)
    context.set_default_timeout(PATIENCE_S * 1000)
    watched = Watched(context.new_page(), origin)
    page = watched.page
    page.add_init_script(NOTE_VIOLATIONS)
    page.on("console", lambda said: said.type in ("error", "warning") and watched.complaints.append(said.text))
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    page.goto(f"{origin}/")
    yield watched
    context.close()

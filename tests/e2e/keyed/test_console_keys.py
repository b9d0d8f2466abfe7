"""The console of a server that asks for API keys."""

import pytest
from playwright.sync_api import expect

from support.platforms.browser import chromium, opened
from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]


def test_it_asks_for_a_key_keeps_it_in_its_tab_and_forgets_it(keyed: Served) -> None:
    with chromium() as browser, opened(browser, keyed.url) as watched:
        page = watched.page
        expect(page.locator("#live")).to_have_text("An API key is needed")
        expect(page.locator("#key-panel")).to_contain_text("This server requires an API key")
        page.get_by_label("API key", exact=True).fill("sk-other")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#key-panel")).to_contain_text("The API key is not valid for this server.")
        assert page.locator("section.model").count() == 0
        page.get_by_label("API key", exact=True).fill("sk-few")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "key-toggle"
        expect(page.get_by_role("heading", name=keyed.model)).to_be_visible()
        expect(page.locator("#key-panel")).to_be_hidden()
        # A model that embeds is shown, and is not one to chat with.
        expect(page.locator("section.model")).to_have_count(2)
        expect(page.locator("#model option")).to_have_text([keyed.model])
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.get_by_role("button", name="API key").click()
        page.get_by_role("button", name="Forget it").click()
        expect(page.locator("#live")).to_have_text("An API key is needed")
        assert page.evaluate("sessionStorage.length") == 0

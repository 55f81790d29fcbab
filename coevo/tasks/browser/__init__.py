"""Browser automation: a company's portal, worked through its pages."""

from coevo.tasks.browser.family import Backend, BrowserFamily, chromium_family, family

__all__ = ["Backend", "BrowserFamily", "chromium_family", "family"]

"""Website management: the admin side of a web shop."""

from coevo.tasks.website.family import Backend, WebsiteFamily, family, http_family

__all__ = ["Backend", "WebsiteFamily", "family", "http_family"]

"""The errors of the backend: one for a request, one for the engine. Does not know how Triton spells them."""

from __future__ import annotations


class RequestRefused(Exception):
    """A request asks for something that is malformed, too long or not supported; other requests are not touched."""


class EngineUnusable(Exception):
    """The engine directory or the model's parameters are wrong; the model cannot be loaded."""

"""The client of a deployment on Triton, over HTTP and gRPC."""

from __future__ import annotations

from specdeploy.triton.client.failures import HINTS, Label, RequestFailed
from specdeploy.triton.client.triton import StreamSession, TritonClient

__all__ = ["HINTS", "Label", "RequestFailed", "StreamSession", "TritonClient"]

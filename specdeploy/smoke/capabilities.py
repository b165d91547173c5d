"""What a server under test can be asked for; a check that needs more than the server has is skipped, and says so."""

from __future__ import annotations

from typing import Final

TRITON: Final = "triton"
GRPC: Final = "grpc"
IDS: Final = "ids"
COUNTS: Final = "counts"
CONTROL: Final = "control"
ENGINES: Final = "engines"
STREAM: Final = "stream"
STREAM_END: Final = "stream-end"

#: Why a check is skipped on a server without it.
MISSING: Final = {
    TRITON: "the server does not speak Triton's protocol",
    GRPC: "the server does not speak gRPC",
    IDS: "its answers carry no token ids",
    COUNTS: "its answers do not say what was drafted and accepted",
    CONTROL: "no request can have the target alone",
    ENGINES: "its engines cannot be asked directly",
    STREAM: "its front door does not stream",
    STREAM_END: "its pieces do not say why the answer ended",
}
ALL: Final = frozenset(MISSING)

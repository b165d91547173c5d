"""What stands in a tree for a file whose content was not read.

Knows why, and the size where that is all that is known. Judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Self

#: Triton looks at the time of every file in a model, and refuses a model with one that it cannot look at.
DANGLING: Final = "is a link to nothing"
#: It follows links, too, until the file system gives up.
CIRCLE: Final = "is a link back to a folder that it lies in"


class Unread(bytes):
    """No bytes, where others have their content.

    Args:
        reason: Why, as in "cannot be read: ...".
        size: Bytes of the file; None when it has none to read, or they are not known.
        hidden: Whether a server may see there what was not seen here.
    """

    reason: str
    size: int | None
    hidden: bool

    def __new__(cls, reason: str, *, size: int | None = None, hidden: bool = False) -> Self:
        """Make it; see the class."""
        unread = super().__new__(cls)
        unread.reason, unread.size, unread.hidden = reason, size, hidden
        return unread


def size_of(data: bytes) -> int:
    """Return how many bytes a file of a tree has, whether or not they were read."""
    return (data.size or 0) if isinstance(data, Unread) else len(data)

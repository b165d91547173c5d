"""``python -m specdeploy``: the same command line as the ``specdeploy`` script."""

from __future__ import annotations

from specdeploy.cli import main

if __name__ == "__main__":
    main()

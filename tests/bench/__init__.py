"""What the README claims about speed, measured side by side in one run: ``make bench``."""

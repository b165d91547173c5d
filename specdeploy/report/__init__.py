"""Reports for people: one self-contained HTML page, and tables for the terminal."""

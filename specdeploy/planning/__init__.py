"""What is to be done, computed before any of it is done."""

"""The engine of load tests: sends requests from one event loop and keeps what comes back with its arrival times."""

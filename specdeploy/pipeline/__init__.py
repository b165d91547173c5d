"""The use cases, one module each: this is the library's public API.

``prepare`` check, plan, build, write and lint the repository · ``serving`` start, find and stop the server ·
``measure`` smoke, load, gate and report · ``up`` all of them in order · ``doctor`` what this machine has.
"""

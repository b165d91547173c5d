"""The parts that touch the world: processes, files, the clock, this machine."""

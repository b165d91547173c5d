"""The YAML of a deployment: its shape, its reader, its template."""

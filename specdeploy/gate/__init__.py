"""The gate: rules on what a load test measured, and the verdict that CI acts on."""

"""How a deployment is served, as values: command lines, what they ask of their surroundings, what a server tells.

Knows tritonserver's options and NVIDIA's ways to start several ranks. Starts and asks nothing.
"""

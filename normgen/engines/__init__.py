"""Kernels in the engines that people run: each module is a door, and knows one client's way of being handed a kernel.

Nothing here imports a client: a door writes files that the client reads, or is imported by it.
"""

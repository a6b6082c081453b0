"""Kernels in the engines that people run: each module is a door, and knows one client's way of being handed a kernel.

A door writes files that the client reads, or is imported by it through an entry point. Nothing here changes a client
that does not name normgen in its own configuration.
"""

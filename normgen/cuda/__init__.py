"""NVRTC, the cubin cache, the driver and launches: gets text, names and sizes; knows no formula."""

"""The reproductions of an attack on normgen, each as a test that is named after it (h1, m3, low)."""

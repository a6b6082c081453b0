"""Many measurements as one run: cases, the loop over them, the file that keeps what was found."""

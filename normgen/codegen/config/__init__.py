"""What a kernel has of its Config, and the kernel of one Config written out."""

"""What a tile makes of its products, beside the epilogue itself."""

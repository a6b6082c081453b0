"""The reference of the knobs: what each decides, who owns what under it, and when its values win."""

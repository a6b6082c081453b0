"""The commands about engines: what they would run of ours."""

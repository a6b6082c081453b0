"""The command `normgen profile`."""

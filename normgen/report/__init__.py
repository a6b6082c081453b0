"""What people read, derived from code and records: the generated parts of README.md."""

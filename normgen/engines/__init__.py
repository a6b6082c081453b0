"""normgen in other programs: each adapter speaks one engine's or one library's language, over operators and records.

Nothing here is imported by the rest of the package but the command line, and nothing changes an engine that does not
name normgen in its own configuration.
"""

"""Text for people: tables, figures, and the words of both."""

from normgen.text.tables import figure, filled, table
from normgen.text.words import legend

__all__ = ["figure", "filled", "legend", "table"]

"""Schedules of rows that lie side by side: neighbouring threads own neighbouring rows, and share the columns."""

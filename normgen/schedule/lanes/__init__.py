"""Schedules of rows that lie side by side: neighbouring threads own neighbouring rows, and each has a part of its own."""

"""Problems drawn once and timed once: what first choices are scored on, and fitted to."""

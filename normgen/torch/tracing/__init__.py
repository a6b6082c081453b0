"""torch functions as specs: recorded, said in the language, compared with the function, run as one kernel."""

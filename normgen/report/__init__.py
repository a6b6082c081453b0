"""What people read, derived from code and records: a page of results, the same plots as PNG, parts of README.md.

evidence    what record and sweep files hold: searches, sweeps, winners
importance  how much of the variance of the times each knob explains
view        the figures of the page as one JSON object
page        the HTML page
plots       the PNG files
readme      the generated parts of README.md
"""

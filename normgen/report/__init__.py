"""Ways to look at results: one self-contained HTML page, and the same plots as PNG.

evidence    what record and sweep files hold: searches, sweeps, winners
importance  how much of the variance of the times each knob explains
view        the figures of the page as one JSON object
page        the HTML page;  plots: the PNG files
"""

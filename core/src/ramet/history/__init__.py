"""Earlier runs, read from their directories: a summary of each, their differences, what may be removed, and
rows for notebooks.
"""

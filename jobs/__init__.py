"""The doors: one thin file per stage, and the command line."""

"""The words of the command line, and those that read what a run left behind. Nothing here loads torch by itself."""

"""Programs that ask for a GPU, run over the stand-in for the driver: verbs of the command line, and the check of a GPU."""

"""What goes with a result or with the program: archives, loaders, recipes and pages of documentation."""

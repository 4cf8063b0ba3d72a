"""Jobs and the loop nests that they become: which axis is vectorised, which are shared, what is stored where."""

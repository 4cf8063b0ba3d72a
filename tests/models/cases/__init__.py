"""Small graphs by what their sizes follow from; those of `tests/models/size_cases.py` are the others."""

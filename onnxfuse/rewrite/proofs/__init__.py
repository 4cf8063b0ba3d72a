"""What rewrites prove before they fire: conditions of laws, ranges of values, elements as functions of places."""

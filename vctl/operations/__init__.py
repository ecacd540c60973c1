"""One declaration per verb, and the two backends that carry verbs out: a state directory and a server."""

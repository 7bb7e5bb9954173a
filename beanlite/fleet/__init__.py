"""Several servers that share tubes out: which there are, and which of them has a tube."""

"""The page in the browser: a process of its own that asks the server what any operator may ask."""

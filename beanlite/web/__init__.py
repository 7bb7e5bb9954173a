"""The page in the browser: a process of its own that uses the server's commands for operators."""

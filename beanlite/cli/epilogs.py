"""What --help says below the options of a command."""


def epilog(command: str, examples: str, exit_codes: str) -> str:
    """Return the examples of a command, such as "kick" or "policy set", and its exit codes.

    ``examples`` has those of several commands, a paragraph for each.
    """
    words = command.split()
    blocks = (block.strip().split("\n") for block in examples.split("\n\n"))
    lines = next((block for block in blocks if block[0].split()[1 : 1 + len(words)] == words), [])
    # The mark at the beginning of a paragraph keeps its lines from being rewrapped.
    return ("\n  ".join(["\b\nExamples:", *lines]) + "\n\n" if lines else "") + exit_codes

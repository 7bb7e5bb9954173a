"""What a client may do with which tubes.

A right is a role on the tubes that a pattern matches. Nothing here knows of connections or of commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PRODUCER: Final = "producer"
WORKER: Final = "worker"
READER: Final = "reader"
OPERATOR: Final = "operator"
ROLES: Final = (PRODUCER, WORKER, READER, OPERATOR)
# The role of those that have any role, and that of those that handle jobs or look at them.
ANY: Final = "any"
WORKER_OR_READER: Final = "worker or reader"
# The pattern of all tubes.
ALL_TUBES: Final = b"*"

# How many answers are remembered for a set of rules: clients choose the names that they ask for.
_ANSWERS_MAX: Final = 1000
_STAR: Final = 42
_QUESTION: Final = 63


def covers(glob: bytes, pattern: bytes) -> bool:
    """Whether a glob matches every tube that a pattern matches, which may be the name of one.

    It takes time in proportion to the product of their lengths at most, for clients choose the names. The answer is no
    in some cases in which several characters that stand for any text come together; such patterns are of no use.
    """
    at = glob_at = 0
    star, tried = -1, 0
    size, glob_size = len(pattern), len(glob)
    while at < size:
        if glob_at < glob_size and glob[glob_at] == _STAR:
            star, tried = glob_at, at
            glob_at += 1
        elif (
            glob_at < glob_size
            and pattern[at] != _STAR
            and (glob[glob_at] == _QUESTION or glob[glob_at] == pattern[at])
        ):
            glob_at += 1
            at += 1
        elif star >= 0:
            tried += 1
            at, glob_at = tried, star + 1
        else:
            return False
    while glob_at < glob_size and glob[glob_at] == _STAR:
        glob_at += 1
    return glob_at == glob_size


class Rights:
    """What a set of rules permits."""

    __slots__ = ("_answers", "_globs", "_names", "everything", "grants")

    def __init__(self, grants: Iterable[tuple[str, bytes]]) -> None:
        """Take roles, each with a pattern of tubes."""
        self.grants = frozenset(grants)
        names: dict[str, set[bytes]] = {role: set() for role in (*ROLES, ANY, WORKER_OR_READER)}
        globs: dict[str, list[bytes]] = {role: [] for role in names}
        for role, pattern in sorted(self.grants):
            roles = [*(ROLES if role == OPERATOR else (role,)), ANY]
            if role != PRODUCER:
                roles.append(WORKER_OR_READER)
            for each in roles:
                if _STAR in pattern or _QUESTION in pattern:
                    globs[each].append(pattern)
                else:
                    names[each].add(pattern)
        self._names = names
        self._globs = globs
        self._answers: dict[str, dict[bytes, bool]] = {role: {} for role in globs}
        self.everything = self.may(OPERATOR, ALL_TUBES)
        """Nothing is forbidden."""

    def may(self, role: str, pattern: bytes) -> bool:
        """Whether they include a role on all tubes that a pattern matches, which may be the name of one."""
        answers = self._answers[role]
        answer = answers.get(pattern)
        if answer is None:
            answer = pattern in self._names[role] or any(covers(glob, pattern) for glob in self._globs[role])
            if len(answers) >= _ANSWERS_MAX:
                answers.clear()
            answers[pattern] = answer
        return answer

    def has(self, role: str) -> bool:
        """Whether they include a role on any tube."""
        return bool(self._names[role] or self._globs[role])

    def looks(self, role: str) -> int:
        """Return how much ``may`` looks at for a role on a tube: at its name, and at each glob."""
        return 1 + len(self._globs[role])

    def include(self, others: Rights) -> bool:
        """Whether nothing is lost by having these rights instead of others."""
        return all(self.may(role, pattern) for role, pattern in others.grants)


EVERYTHING: Final = Rights([(OPERATOR, ALL_TUBES)])
NOTHING: Final = Rights([])

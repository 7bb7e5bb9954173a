"""What a server tells of itself: on the command line, on the page, in top and in its metrics."""

import json
import re
from contextlib import closing
from functools import cached_property

from beanlite.cli import main
from beanlite.console.several import only
from beanlite.console.top.sampling import Sampler
from beanlite.console.top.summary import summary
from tests.support.health import metrics
from tests.support.web import Web
from tests.support.wire import until


def lasting(text):
    """Return a text without its numbers and times, which change meanwhile."""
    return " ".join(re.sub(r"[\d,.:]+( (?:d|h|min|s)\b)?", "", text).split())


class Surfaces:
    """All places where a server tells what is wrong."""

    def __init__(self, server, health, capsys, stack):
        """``health``: where the metrics are; ``stack``: an ExitStack, which closes what is opened."""
        self.server = server
        self.health = health
        self.stack = stack
        self._capsys = capsys

    @property
    def connect(self):
        return f"{self.server.host}:{self.server.port}"

    def why(self, *words):
        """Return the exit code and the findings by kind, as the command line tells them."""
        exit_code = main(["why", *words, "--json", "--connect", self.connect])
        findings = json.loads(self._capsys.readouterr().out)["findings"]
        return exit_code, {finding["kind"]: finding for finding in findings}

    def told(self, kind):
        """Wait until a finding is told by the command line, the metrics, top and the page; return it."""
        findings = {}
        until(lambda: findings.update(self.why()[1]) or kind in findings)
        finding = findings[kind]
        until(lambda: metrics(self.health).get(("beanlite_findings", kind)) == (finding["tubes"] or 1))
        for place in finding["worst"]:
            assert ("beanlite_finding", kind, finding["severity"], place["tube"]) in metrics(self.health)
        words = lasting(finding["text"])
        assert (words in lasting(self._top())) == (finding["severity"] != "note")
        until(lambda: words in lasting(self.web.get("/").text))  # which shows what is a second old
        return finding

    def _top(self):
        with closing(Sampler(only((self.server.host, self.server.port)).places[0])) as sampler:
            sample = sampler.sample()
            return str(summary(sample, self.connect, len(sample.findings)))  # as top --once

    @cached_property
    def web(self):
        return self.stack.enter_context(Web(self.connect))

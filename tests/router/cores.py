"""A router without sockets in front of servers without sockets, in time that stands still until a test advances it."""

from collections import defaultdict

from beanlite.fleet.servers import Fleet, _ServersFile
from beanlite.protocol.blocked import CLOSING
from beanlite.router.conversation import RouterSession
from beanlite.router.known import Map
from beanlite.router.lane import CLOSED, CONNECTING, OPEN
from tests.support.core import Core

SECOND_NS = 1_000_000_000


def fleet_of(tubes, moved=None, first=1, prefix="s"):
    """The file of servers ``s1``, ``s2`` and so on, with these tubes; the first one has all others."""
    servers = {
        f"{prefix}{at + 1}": {"number": first + at, "connect": "localhost:1", "tubes": list(names), "hashed": at == 0}
        for at, names in enumerate(tubes)
    }
    return Fleet(_ServersFile.model_validate({"version": 1, "servers": servers, "moved": moved or {}}))


class OldCore(Core):
    """A server that does not know offers, as beanstalkd."""

    def start(self, engine, max_job_size):
        super().start(engine, max_job_size)
        for word in (b"offer", b"take", b"decline", b"note", b"name"):
            self.service.words.bare.pop(word, None)
            self.service.words.with_arguments.pop(word, None)


class Net:
    """The servers, and the clients of the router."""

    def __init__(self, *tubes, moved=None, first=1, old=(), max_job_size=65535):
        self.map = Map(fleet_of(tubes, moved, first))
        self.cores = {}
        for number, server in self.map.servers.items():
            self.cores[number] = (OldCore if number in old else Core)(max_job_size)
            server.knows_offers = server.knows_notes = number not in old
        self.clients = []
        self.halted = set()
        """Servers that neither take nor say anything for now."""
        self.plain = set()
        """Servers the connections to which can be overheard."""
        self.away = set()
        """Servers that can't be reached."""
        self.ends = True
        """Servers close the connection of a client that has half-closed at once."""
        self.writes = defaultdict(list)
        """What was sent to each server at once."""

    @property
    def now_s(self):
        return next(iter(self.cores.values())).now_ns / SECOND_NS

    def client(self, **options):
        client = Client(self, **options)
        self.clients.append(client)
        return client

    def run(self):
        """Let everything happen that can happen now."""
        while sum(client.step() for client in self.clients):
            pass

    def wait(self, seconds):
        """Let time pass, in small steps."""
        self.run()
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-6:
            for core in self.cores.values():
                core.wait(min(0.05, end_s - self.now_s) if core is not None else 0)
            self.run()
            for client in self.clients:
                if client.session.due_s <= self.now_s:
                    client.session.tick(self.now_s)
            self.run()

    def lose(self, number):
        """End all connections to a server."""
        for client in self.clients:
            client.lose(number)
        self.run()

    def leave(self, number):
        """Have a server be away."""
        self.away.add(number)
        self.map.servers[number].away = True
        self.lose(number)
        for client in self.clients:
            for lane in [each for each in client.session.lanes.values() if each.number == number]:
                if lane.state == CONNECTING:
                    client.opening = [each for each in client.opening if each is not lane]
                    client.session.opening = [each for each in client.session.opening if each is not lane]
                    client.session.failed(lane, self.now_s)
        self.run()

    def come_back(self, number):
        self.away.discard(number)
        self.map.servers[number].away = False
        for client in self.clients:
            client.session.come_back(self.now_s)
        self.run()

    def change(self, *tubes, **more):
        """Take another file of servers."""
        self.map.change(fleet_of(tubes, **more))
        for client in self.clients:
            client.look_again()
        self.run()


class Client:
    """A client of the router."""

    def __init__(self, net, **options):
        self.net = net
        self.session = RouterSession(net.map, lambda: {"pid": "1"}, **options)
        self.ends = {}
        """The sessions of the servers, by lane."""
        self.opening = []
        self.said = b""
        """The replies that were sent, and not taken yet."""

    def send(self, data):
        """Send data, and return the replies that come at once."""
        self.session.receive(data, self.net.now_s)
        self.net.run()
        return self.take()

    def take(self):
        """Return the replies that have come."""
        data, self.said = self.said + self.session.take(), b""
        return data

    def half_close(self):
        self.session.half_close(self.net.now_s)
        self.net.run()
        return self.take()

    def leave(self):
        """Close the connection."""
        for lane in list(self.ends):
            self.close(lane)
        self.net.clients.remove(self)
        self.session.leave()
        self.net.run()

    def close(self, lane):
        end = self.ends.pop(lane)
        self.net.cores[lane.number].close(end)

    def lose(self, number):
        for lane in [lane for lane in self.ends if lane.number == number]:
            self.close(lane)
            was_open = lane.state == OPEN
            (self.session.lost if was_open else self.session.failed)(lane, self.net.now_s)

    def step(self):
        """Do what can be done; return whether there was anything."""
        session, net = self.session, self.net
        self.opening += session.opening
        session.opening.clear()
        did = False
        for lane in list(self.opening):
            if lane.number in net.halted:
                continue
            self.opening.remove(lane)
            did = True
            if lane.number in net.away:
                session.failed(lane, net.now_s)
                continue
            self._open(lane)
        for lane in [lane for lane in session.dirty if lane.number not in net.halted]:
            session.dirty.remove(lane)
            self._pass_on(lane, lane.take())
            did = True
        for lane, end in list(self.ends.items()):
            if lane.number not in net.halted and self.ends.get(lane) is end:
                did |= self._take_replies(lane, end)
        lane = session.take_ending()
        if lane is not None:
            core, end = net.cores[lane.number], self.ends[lane]
            end.half_close(core.now_ns)
            core.go_on(end)
            core._wake()
            self._take_replies(lane, end)
            if net.ends:
                self.close(lane)
                session.lost(lane, net.now_s)
            did = True
        self.said += session.take()
        if session.can_go_on:
            session.tick(net.now_s)
            did = True
        return did

    def look_again(self):
        """Take note that tubes may have moved, and close what the client can do without at servers that are gone."""
        self.session.look_again(self.net.now_s)
        self._end_misplaced()
        for lane in list(self.ends):
            if lane.number not in self.net.map.servers and self.session.is_spare(lane):
                self.close(lane)
                self.session.lost(lane, self.net.now_s)

    def _end_misplaced(self):
        lane = self.session.misplaced()
        if lane is not None and lane in self.ends:
            self.close(lane)
            self.session.lost(lane, self.net.now_s)

    def _open(self, lane):
        self.ends[lane] = self.net.cores[lane.number].client(operator=True)  # as on the same machine
        is_private = lane.number not in self.net.plain
        self._pass_on(lane, self.session.opened(lane, self.net.now_s, is_private=is_private))
        if lane.state == CLOSED:
            self.close(lane)
        if self.session.misplaced() is lane:
            self.look_again()

    def _pass_on(self, lane, data):
        if data:
            assert not lane.ended
            self.net.writes[lane.number].append(data)
            core = self.net.cores[lane.number]
            core.receive(self.ends[lane], data)
            core._wake()

    def _take_replies(self, lane, end):
        data = end.take_replies()
        if not data:
            return False
        is_sound = self.session.came(lane, data, self.net.now_s)
        if lane.state == CLOSED or not is_sound or end.blocked is CLOSING:
            self.close(lane)
            if lane.state != CLOSED:
                self.session.lost(lane, self.net.now_s)
        self._end_misplaced()
        return True


def put(body, pri=0, delay_s=0, ttr_s=60):
    return b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body)


def job_at(net, number, tube):
    """Put a job into a tube directly at a server, and return its id there."""
    core = net.cores[number]
    reply = core.send(core.client(), b"use %b\r\n%b" % (tube, put(b"x")))
    net.run()
    return int(reply.split()[-1])


def stats_of_job(net, number, job_id):
    core = net.cores[number]
    lines = core.send(core.client(), b"stats-job %d\r\n" % job_id).decode().split("\n")
    return dict(line.split(": ") for line in lines if ": " in line)

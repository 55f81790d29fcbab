"""Routing rules, R6.

Promises:
 1. Turns of one conversation stay on one replica while the load is even.
 2. A new conversation goes to the least loaded replica.
 3. A conversation moves when its replica is dead, full, or more than `imbalance` requests ahead.
 4. A request waits only while every live replica is full: no replica idles while another queues.
 5. A freed place goes to its own conversations first, but nobody is passed over for ever.
 6. Bookkeeping is exact under any order of events, and pins are bounded.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.router import Assignment, Router, RouterConfig


def router_with(*replicas: str, **config: int) -> Router:
    """A router with these replicas and a clock that stands still."""
    router = Router(RouterConfig(**config), clock=lambda: 0.0)
    router.add(*replicas)
    return router


def where(assignment: Assignment | None) -> str:
    """The replica of an assignment that must exist."""
    assert assignment is not None
    return assignment.replica


def test_turns_of_one_conversation_stay_together() -> None:
    """R6, promise 1: 30 conversations of 6 turns each, interleaved; each sees one replica."""
    router = router_with("a", "b", "c")
    seen: dict[str, set[str]] = {}
    ticket = 0
    for _ in range(6):
        open_tickets = []
        for number in range(30):
            ticket += 1
            seen.setdefault(f"s{number}", set()).add(where(router.submit(ticket, session=f"s{number}")))
            open_tickets.append(ticket)
        for done in open_tickets:
            router.release(done)
    assert all(len(replicas) == 1 for replicas in seen.values())
    assert Counter(next(iter(replicas)) for replicas in seen.values()) == {"a": 10, "b": 10, "c": 10}
    assert router.stats().moved == 0
    assert router.stats().sticky == 30 * 5


def test_a_skewed_conversation_set_does_not_starve_a_replica() -> None:
    """R6, promise 3: all pins on one replica (consistent hashing's fault); once both serve, the load evens out."""
    router = router_with("a", imbalance=4)
    for ticket in range(20):
        router.submit(ticket, session=f"s{ticket}")
    for ticket in range(20):
        router.release(ticket)
    router.add("b")
    for ticket in range(100, 120):
        router.submit(ticket, session=f"s{ticket - 100}")
    load = router.stats().in_flight
    assert abs(load["a"] - load["b"]) <= 4
    assert router.stats().moved == load["b"]


def test_a_full_replica_does_not_hold_its_conversations() -> None:
    """R6, promises 3 and 4: with its replica full, a conversation moves to the idle one instead of queueing."""
    router = router_with("a", "b", admission_limit=2, imbalance=100)
    assert where(router.submit(1, session="x")) == "a"
    assert where(router.submit(2, session="y")) == "b"
    router.release(2)
    assert where(router.submit(3, session="x")) == "a"
    assert where(router.submit(4, session="x")) == "b"
    assert router.stats().waiting == 0


def test_a_dead_replica_takes_its_pins_along() -> None:
    """Promise 3: after `drop` its tickets are returned once, its sessions are free, and late releases change nothing."""
    router = router_with("a", "b")
    tickets = {ticket: where(router.submit(ticket, session=f"s{ticket}")) for ticket in range(10)}
    lost = router.drop("a")
    assert set(lost) == {ticket for ticket, replica in tickets.items() if replica == "a"}
    assert all(router.release(ticket) == () for ticket in lost)
    assert where(router.submit(50, session="s0")) == "b"
    assert router.stats().in_flight == {"b": 6}
    router.add("a")
    assert where(router.submit(51, session="new")) == "a"


def test_waiting_tickets_get_freed_places_sticky_first() -> None:
    """Promise 5: the replica's own conversation overtakes one pinned elsewhere; the overtaken one is not passed over for ever."""
    router = router_with("a", "b", admission_limit=1, imbalance=100, patience=3)
    assert where(router.submit(1, session="A")) == "a"
    assert where(router.submit(2, session="B")) == "b"
    assert router.submit(3, session="B") is None
    for ticket in range(10, 20):
        assert router.submit(ticket, session="A") is None
    taken, last = [], 1
    for _ in range(4):
        (assignment,) = router.release(last)
        taken.append(assignment.ticket)
        last = assignment.ticket
    assert taken == [10, 11, 12, 3]


def test_nothing_alive_means_waiting() -> None:
    """Without replicas tickets wait; the first healthy ones take them, spread evenly."""
    router = router_with()
    assert all(router.submit(ticket, session=f"s{ticket}") is None for ticket in range(6))
    placed = router.add("a", "b")
    assert sorted(one.ticket for one in placed) == list(range(6))
    assert router.stats().in_flight == {"a": 3, "b": 3}


def test_a_caller_that_gives_up_leaves_no_trace() -> None:
    """Releasing a waiting ticket removes it from the queue."""
    router = router_with("a", admission_limit=1)
    router.submit(1, session="x")
    assert router.submit(2, session="y") is None
    assert router.release(2) == ()
    assert router.release(1) == ()
    assert router.stats().waiting == 0
    assert router.stats().in_flight == {"a": 0}


def test_reported_load_of_other_clients_counts_while_fresh() -> None:
    """A replica busy with others' work gets no new conversation, until its report is too old to believe."""
    now = [0.0]
    router = Router(RouterConfig(report_fresh_s=2.0), clock=lambda: now[0])
    router.add("a", "b")
    router.report("a", depth=30)
    assert where(router.submit(1, session="x")) == "b"
    assert where(router.submit(2, session="y")) == "b"
    now[0] = 2.1
    assert where(router.submit(3, session="z")) == "a"


def test_a_full_cache_repels_new_conversations() -> None:
    """Admission follows KV-cache use: new sessions avoid a replica whose cache is full while another has room."""
    router = router_with("a", "b")
    assert where(router.submit(1, session="x")) == "a"
    assert where(router.submit(2, session="y")) == "b"
    assert where(router.submit(3, session="y")) == "b"
    router.report("a", depth=1, kv_use=0.99)
    assert where(router.submit(4, session="new")) == "b"
    assert where(router.submit(5, session="x")) == "a"


def test_pins_are_bounded() -> None:
    """Promise 6: the least recently used pins go first; `forget` drops one at once."""
    router = router_with("a", "b", max_sessions=3)
    for ticket in range(5):
        router.submit(ticket, session=f"s{ticket}")
    assert router.stats().sessions == 3
    assert router.pinned("s0") is None
    assert router.pinned("s4") is not None
    router.forget("s4")
    assert router.pinned("s4") is None


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=4, max_size=40), replicas=st.integers(2, 5))
def test_no_replica_idles_while_work_queues(lengths: list[int], replicas: int) -> None:
    """R6, promise 4, on conversations of very different lengths over fake engines that serve two requests per tick."""
    router = router_with(*[f"r{index}" for index in range(replicas)], admission_limit=2, imbalance=2)
    left = dict(enumerate(lengths))
    running: dict[int, int] = {}
    ticket = 0
    owner: dict[int, int] = {}
    idle = set(left)
    for _ in range(sum(lengths) + 1):
        for conversation in sorted(idle):
            ticket += 1
            owner[ticket] = conversation
            placed = router.submit(ticket, session=f"c{conversation}")
            if placed is not None:
                running[ticket] = conversation
        idle.clear()
        stats = router.stats()
        if stats.waiting:
            assert all(load == 2 for load in stats.in_flight.values())
        assert len(running) == min(len(left), 2 * replicas)
        for done in list(running):
            conversation = running.pop(done)
            for assignment in router.release(done):
                running[assignment.ticket] = owner[assignment.ticket]
            left[conversation] -= 1
            if left[conversation]:
                idle.add(conversation)
            else:
                del left[conversation]
        if not left:
            break
    assert not left


class RouterMachine(RuleBasedStateMachine):
    """Any order of events: what the router says equals a plain recount (promises 4 and 6)."""

    @initialize()
    def begin(self) -> None:
        self.router = Router(RouterConfig(admission_limit=3, imbalance=2, patience=2, max_sessions=4), clock=lambda: 0.0)
        self.alive: set[str] = set()
        self.placed: dict[int, str] = {}
        self.waiting: set[int] = set()
        self.ticket = 0

    def take(self, assignments: tuple[Assignment, ...]) -> None:
        for ticket, replica in assignments:
            assert ticket in self.waiting
            self.waiting.remove(ticket)
            self.placed[ticket] = replica

    @rule(replica=st.sampled_from("abc"))
    def add(self, replica: str) -> None:
        self.alive.add(replica)
        self.take(self.router.add(replica))

    @rule(replica=st.sampled_from("abc"))
    def drop(self, replica: str) -> None:
        self.alive.discard(replica)
        lost = self.router.drop(replica)
        assert set(lost) == {ticket for ticket, where_ in self.placed.items() if where_ == replica}
        for ticket in lost:
            del self.placed[ticket]

    @rule(session=st.sampled_from("uvwxyz"))
    def submit(self, session: str) -> None:
        self.ticket += 1
        assignment = self.router.submit(self.ticket, session=session)
        if assignment is None:
            self.waiting.add(self.ticket)
        else:
            self.placed[self.ticket] = assignment.replica

    @precondition(lambda self: self.placed or self.waiting)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted({*self.placed, *self.waiting})))
        self.placed.pop(ticket, None)
        self.waiting.discard(ticket)
        self.take(self.router.release(ticket))

    @rule(replica=st.sampled_from("abc"), depth=st.integers(0, 9))
    def report(self, replica: str, depth: int) -> None:
        self.router.report(replica, depth=depth, kv_use=depth / 9)

    @invariant()
    def recount(self) -> None:
        if not hasattr(self, "router"):
            return
        stats = self.router.stats()
        assert stats.in_flight == {name: sum(where_ == name for where_ in self.placed.values()) for name in stats.in_flight}
        assert set(stats.in_flight) == self.alive
        assert stats.waiting == len(self.waiting)
        assert stats.sessions <= 4
        assert all(load <= 3 for load in stats.in_flight.values())
        if self.waiting:
            assert all(load == 3 for load in stats.in_flight.values())


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

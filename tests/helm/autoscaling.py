"""Plays a load against pods that a ScaledObject scales: its queries, the formula of Kubernetes' autoscaler, and the way a pod starts and ends.

Knows no chart and no server: pods compute tokens at a steady speed, and chance comes from a seed. Not a model of batching.
"""

import math
import random
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field

STEP_S = 0.25
SCRAPE_S = 15
SYNC_S = 15
# The autoscaler leaves alone what is off by less.
TOLERANCE = 0.1
SELECTOR = re.compile(r'^sum\((max_over_time|avg_over_time|rate)\((\w+)\{(.*)\}\[(\d+)(s|m)\]\)\)$')
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class Trigger:
    query: str
    threshold: float


@dataclass
class Rules:
    """What the chart says of a pool."""

    triggers: list
    least: int
    most: int
    stabilization_s: float
    down_pods: int
    down_period_s: float
    up_percent: int
    up_pods: int
    up_period_s: float
    drain_delay_s: float
    drain_timeout_s: float

    @classmethod
    def of(cls, scaled, drain):
        """Of a ScaledObject; a policy that it does not know is an error."""
        spec = scaled["spec"]
        behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        up = {policy["type"]: policy for policy in behaviour["scaleUp"]["policies"]}
        [down] = behaviour["scaleDown"]["policies"]
        assert behaviour["scaleUp"]["selectPolicy"] == "Max" and down["type"] == "Pods" and set(up) == {"Percent", "Pods"}
        assert all(trigger["type"] == "prometheus" and trigger["metricType"] == "AverageValue" for trigger in spec["triggers"])
        return cls(
            triggers=[Trigger(t["metadata"]["query"], float(t["metadata"]["threshold"])) for t in spec["triggers"]],
            least=spec["minReplicaCount"],
            most=spec["maxReplicaCount"],
            stabilization_s=behaviour["scaleDown"]["stabilizationWindowSeconds"],
            down_pods=down["value"],
            down_period_s=down["periodSeconds"],
            up_percent=up["Percent"]["value"],
            up_pods=up["Pods"]["value"],
            up_period_s=up["Pods"]["periodSeconds"],
            drain_delay_s=drain["delaySeconds"],
            drain_timeout_s=drain["timeoutSeconds"],
        )


@dataclass
class Pod:
    labels: dict
    ready_at: float
    tokens_per_s: float
    backlog: float = 0.0
    busy_s: float = 0.0
    # When it was told to stop, and until when it is in lists of endpoints.
    stopped_at: float = math.inf
    routed_until: float = math.inf

    def is_routed(self, now):
        return self.ready_at <= now < self.routed_until

    def step(self):
        worked = min(STEP_S, self.backlog / self.tokens_per_s)
        self.busy_s += worked
        self.backlog -= worked * self.tokens_per_s

    def samples(self):
        yield "magray_queue_predicted_seconds", self.labels, self.backlog / self.tokens_per_s
        yield "magray_device_busy_seconds_total", self.labels | {"device": "cpu"}, self.busy_s
        # A device of another kind, which the queries of this pool have to leave out.
        yield "magray_device_busy_seconds_total", self.labels | {"device": "cuda:0"}, 1000 * self.busy_s


class Prometheus:
    """Keeps samples, and answers the forms of queries that charts have."""

    def __init__(self):
        self.series = defaultdict(deque)

    def scrape(self, now, pods):
        for pod in pods:
            for name, labels, value in pod.samples():
                kept = self.series[name, tuple(sorted(labels.items()))]
                kept.append((now, value))
                while kept[0][0] < now - 600:
                    kept.popleft()

    def ask(self, query, now):
        form = SELECTOR.match(query)
        assert form, f"a query that is not understood: {query}"
        function, name, matchers, count, unit = form.groups()
        since = now - int(count) * (60 if unit == "m" else 1)
        total = 0.0
        for (metric, labels), samples in self.series.items():
            if metric != name or not matches(dict(labels), matchers):
                continue
            window = [sample for sample in samples if sample[0] > since]
            if function == "max_over_time":
                total += max((value for _, value in window), default=0.0)
            elif function == "avg_over_time":
                total += sum(value for _, value in window) / max(len(window), 1)
            elif len(window) >= 2:
                (first, low), (last, high) = window[0], window[-1]
                total += (high - low) / (last - first)
        return total


def matches(labels, matchers):
    rest = matchers
    for name, operator, text in MATCHER.findall(matchers):
        rest = rest.replace(f'{name}{operator}"{text}"', "", 1)
        value = labels.get(name, "")
        is_equal = bool(re.fullmatch(text, value)) if "~" in operator else value == text
        if is_equal == operator.startswith("!"):
            return False
    assert not rest.strip(", "), f"labels that are not understood: {matchers}"
    return True


@dataclass
class Autoscaler:
    """HorizontalPodAutoscaler v2 with metrics of the type AverageValue."""

    rules: Rules
    wanted: deque = field(default_factory=deque)
    changes: deque = field(default_factory=deque)

    def replicas(self, now, current, values):
        rules = self.rules
        raw = current if not values else 0
        for trigger, value in zip(rules.triggers, values):
            ratio = value / (trigger.threshold * current)
            raw = max(raw, current if abs(ratio - 1) <= TOLERANCE else math.ceil(value / trigger.threshold))
        self.wanted.append((now, raw))
        while self.wanted[0][0] < now - rules.stabilization_s:
            self.wanted.popleft()
        # Down only to the most that was wanted lately; up at once.
        stable = raw if raw >= current else min(current, max(count for _, count in self.wanted))
        stable = min(max(stable, rules.least), rules.most)
        changed = lambda within, sign: sum(by for at, by in self.changes if at > now - within and by * sign > 0)
        if stable > current:
            start = current - changed(rules.up_period_s, 1)
            most = max(math.ceil(start * (1 + rules.up_percent / 100)), start + rules.up_pods)
            stable = min(stable, max(most, current))
        elif stable < current:
            start = current - changed(rules.down_period_s, -1)
            stable = max(stable, min(start - rules.down_pods, current))
        if stable != current:
            self.changes.append((now, stable - current))
        return stable


@dataclass
class Result:
    # (time, seconds waited) of every request.
    waits: list
    # (time, replicas) whenever they change.
    replicas: list
    requests: int
    lost: int

    def p99(self, since=0.0, until=math.inf):
        waits = sorted(wait for at, wait in self.waits if since <= at < until)
        return waits[int(0.99 * (len(waits) - 1))] if waits else 0.0

    def worst_p99(self, window_s, until):
        return max(self.p99(at, at + window_s) for at in range(0, int(until), window_s))

    def turns(self, within_s, load):
        """How often pods that were sent away were brought back within this time, although there was no more to do."""
        steps = [(at, count - before) for (_, before), (at, count) in zip(self.replicas, self.replicas[1:])]
        pairs = zip(steps, steps[1:])
        return sum(by < 0 < after and later - at <= within_s and load(later) < 1.05 * load(at) for (at, by), (later, after) in pairs)


@dataclass
class Cluster:
    labels: dict
    tokens_per_s: float = 20_000.0
    tokens_per_request: float = 1_000.0
    # To be scheduled, to start, to load the model, and to pass a readiness probe.
    start_s: float = 30.0
    # Until every proxy knows that a pod left: at least and at most.
    propagation_s: tuple = (1.0, 8.0)

    def play(self, load, until, rules, pods, seed, is_scaled=True):
        """`load(now)`: requests a second."""
        chance = random.Random(seed)
        made = 0

        def pod(ready_at):
            nonlocal made
            made += 1
            return Pod(self.labels | {"pod": f"{self.labels['workload']}-{made:05}-x"}, ready_at, self.tokens_per_s)

        alive = [pod(0.0) for _ in range(pods)]
        prometheus, scaler = Prometheus(), Autoscaler(rules)
        result = Result([], [(0.0, pods)], 0, 0)
        for step in range(int(until / STEP_S)):
            now = step * STEP_S
            for _ in range(poisson(chance, load(now) * STEP_S)):
                result.requests += 1
                routed = [pod for pod in alive if pod.is_routed(now)]
                chosen = chance.choice(routed) if routed else None
                if chosen is None or now >= chosen.stopped_at + rules.drain_delay_s:
                    result.lost += 1
                    continue
                result.waits.append((now, chosen.backlog / chosen.tokens_per_s))
                chosen.backlog += chance.expovariate(1 / self.tokens_per_request)
            for one in alive:
                if one.ready_at <= now:
                    one.step()
            for one in [one for one in alive if now >= one.stopped_at + rules.drain_delay_s]:
                is_late = now >= one.stopped_at + rules.drain_delay_s + rules.drain_timeout_s
                # It stays in sight while requests may still be sent to it.
                if is_late or one.backlog == 0 and now >= one.routed_until:
                    result.lost += math.ceil(one.backlog / self.tokens_per_request)
                    alive.remove(one)
            if now % SCRAPE_S == 0:
                prometheus.scrape(now, [one for one in alive if one.ready_at <= now < one.stopped_at])
            if is_scaled and now % SYNC_S == 0 and now > 0:
                current = [one for one in alive if one.stopped_at == math.inf]
                values = [prometheus.ask(trigger.query, now) for trigger in rules.triggers]
                wanted = scaler.replicas(now, len(current), values)
                alive += [pod(now + self.start_s) for _ in range(wanted - len(current))]
                # Those that are not ready go first, as Kubernetes has it.
                going = sorted(current, key=lambda one: -one.ready_at)[: max(len(current) - wanted, 0)]
                for one in going:
                    one.stopped_at = now
                    one.routed_until = now + chance.uniform(*self.propagation_s)
                if wanted != len(current):
                    result.replicas.append((now, wanted))
        return result


def poisson(chance, mean):
    """Knuth's way, for the small means of a short step."""
    limit, count, product = math.exp(-mean), 0, chance.random()
    while product > limit:
        count += 1
        product *= chance.random()
    return count

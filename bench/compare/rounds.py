"""Lets contenders take turns on cases, round after round. Knows no contender and prints through what it is given."""

from .contenders import Unavailable


def run_rounds(running, cases, plan, results, note):
    """Measures all contenders on all cases they take; `plan` has `rounds` and `seconds`."""
    for number in range(plan.rounds):
        # Every other round goes the other way, so that no contender always follows the same one.
        order = running if number % 2 == 0 else running[::-1]
        for case in cases:
            for contender in order:
                if contender.takes(case) and contender.name not in results.refused:
                    _measure(contender, case, plan.seconds, results, f"round {number + 1}", note)


def _measure(contender, case, seconds, results, label, note):
    try:
        ms = contender.median_ms(case, seconds)
    except Unavailable as reason:
        results.refused[contender.name] = str(reason)
        note(f"{label}  {contender.name:26} {case:22} failed: {reason}")
        return
    results.add(contender.name, case, ms)
    note(f"{label}  {contender.name:26} {case:22} {ms:10.3f} ms")

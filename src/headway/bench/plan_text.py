"""A plan as text, for a terminal."""

from typing import Final

from headway.bench.plan_search import sizes_text
from headway.bench.planning import PlanResult, Row

SHOWN: Final = 16  # rows of the ranking that are printed


def text(result: PlanResult) -> str:
    """Return what is printed of a plan."""
    best = result.best
    head = [f"load       {result.rate_per_s:.2f} requests/s, {result.attainment:.0%} of them within every target"]
    if best is None:
        head.append("answer     none: nothing that was tried holds the target" + ("" if result.complete else " so far"))
    else:
        replicas = sizes_text(best.sizes)
        head.append(f"answer     {best.devices} devices, ${best.usd_per_h:.2f}/h: {replicas} x {best.name}")
    if best is not None and best.lasting is not None:
        head.append(f"confirmed  {confirmed(best)}")
    lines = [*head, "", _HEAD, *[_line(row, result.attainment) for row in result.rows[:SHOWN]]]
    if len(result.rows) > SHOWN:
        lines.append(f"and {len(result.rows) - SHOWN} more, none of them better")
    if result.losses:
        unit = "devices" if result.objective == "devices" else "dollars"
        lines += ["", f"with one replica less, and others with no more than the winner's {unit}, under the longer load"]
        for loss in result.losses:
            what = (
                loss.limit if loss.attainment is None else f"{loss.attainment:.1%}, bound by {loss.limit or 'nothing'}"
            )
            lines.append(f"  {sizes_text(loss.sizes)} x {loss.name}: {what}")
    for row in result.rows:
        if row.note and row.state in ("proven", "not proven", "fails"):
            lines.append(f"  {row.name}: {row.note}")
    if result.refused:
        lines += ["", "not tried"] + [f"  {one.name}: {one.reason}" for one in result.refused]
    if result.rules:
        lines += ["", "rule of thumb (a starting point, not an answer)"]
        words = {True: "the search agrees", False: "the search disagrees", None: "nothing to compare"}
        lines += [f"  {rule.condition}: {rule.choice}; {words[rule.agrees]}" for rule in result.rules]
    for plan in result.stages:
        lines += ["", f"stages of {plan.words}"]
        lines += [f"  {one.stage}: {one.where} ({one.reason})" for one in plan.stages]
    lines += ["", f"{result.runs} runs, seeds {', '.join(map(str, result.seeds))}, the same for all", *result.notes]
    return "\n".join(lines)


def confirmed(row: Row) -> str:
    """Say how an answer held under the longer load."""
    if row.lasting_low is None or row.lasting_high is None:
        return f"{row.lasting or 0.0:.1%} under the longer load, one seed"
    between = f"{row.lasting_low:.1%}-{row.lasting_high:.1%}"
    return f"{row.lasting or 0.0:.1%} under the longer load, {between} with 95 % over {row.lasting_seeds} seeds"


_HEAD: Final = (
    f"{'layout':<44}{'replicas':>9}{'devices':>8}{'$/h':>9}{'attained':>10}{'95 %':>16}{'TTFT p99':>10}{'TPOT p99':>10}"
    "  binds, state"
)


def _line(row: Row, target: float) -> str:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    sign = ">" if row.state == "lost" else ">=" if row.state == "pruned" else ""
    attained = ("-" if row.state != "lost" else f"<{target:.0%}") if row.attainment is None else f"{row.attainment:.1%}"
    between = "-" if row.low is None or row.high is None else f"{row.low:.1%}-{row.high:.1%}"
    return (
        f"{row.name:<44}{sizes_text(row.sizes):>9}{sign + str(row.devices):>8}{row.usd_per_h:>9.2f}{attained:>10}"
        f"{between:>16}{ms(row.ttft_p99_ms):>10}{ms(row.tpot_p99_ms):>10}  {row.limit}, {row.state}"
    )

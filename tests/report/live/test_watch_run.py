"""What the live view shows of one run: figures, ranks, what it cost, its advice, a log as it grows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_story import Story

from launcher.report.live.feed import LiveFeed
from launcher.report.live.screen import detail_screen
from launcher.report.live.view import View

COST = "  12.2 GPU-h, 4.06 of them on spare nodes"
"""Two nodes of four GPUs and a spare one, for an hour and 50 s."""


def screen(story: Story, width: int = 80, height: int = 24, chosen: int = 0) -> list[str]:
    """One run's screen as plain lines, ends stripped; the reader's clock is the leader's."""
    detail = replace(LiveFeed().detail(story.paths, story.t), now=story.t)
    return [line.plain.rstrip() for line in detail_screen(detail, chosen, width, height)]


def begun(tmp_path: Path, **spec: Any) -> Story:
    """A run on two nodes of four GPUs and a spare one, in its first minute."""
    story = Story(tmp_path, gpus_per_node=4, spare_nodes=1, checkpoint={"min_interval_min": 1}, **spec)
    return story.submitted().begins().round_starts(8).wait(50).event("first_step", step=1)


def hour(tmp_path: Path) -> Story:
    """An hour of training with saves of 6 s; rank 5 failed once, and the others waited for rank 2 and 5 once."""
    story = begun(tmp_path).wait(1200).event("save_started", step=600).wait(6)
    story.event("saved", step=600, seconds=40, blocked_s=6, reason="interval")
    story.event("worker_failed", rank=5, host="node3", step=700, cause={"kind": "exception", "text": "it raised"})
    story.event("victims", ranks=[{"rank": r, "host": "node1", "after_s": 0.1} for r in (0, 1)])
    story.round_starts(8).event("first_step", step=601).wait(1200)
    story.event("hang", limit_s=60, laggards=[{"rank": 2, "host": "node2"}, {"rank": 5, "host": "node3"}])
    story.round_starts(8).event("first_step", step=601).wait(1194)
    for step in range(100):
        with story.paths.metrics.open("a") as f:
            f.write(f'{{"step": {step}, "metrics": {{"loss": {2 - step / 100}}}}}\n')
    return picture(story)


def picture(story: Story, ranks: int = 8) -> Story:
    """The leader's picture of its ranks now."""
    table = [
        {"rank": r, "host": f"node{1 + r // 2}", "pid": 100 + r, "step": 1500, "step_time_s": 0.5 + 0.1 * (r == 5),
         "heartbeat_t": story.t - 0.5, "gpu_percent": 93.2, "gpu_mem_bytes": 61.4e9, "gpu_power_w": 412.3,
         "cpu_percent": 250.0, "rss_bytes": 12.6e9}
        for r in range(ranks)
    ]  # fmt: skip
    return story.state(step=1500, total_steps=3000, rate=2.0, world_size=ranks, ranks=table, metrics={"loss": 1.01})


def test_progress_loss_and_time_left(tmp_path: Path) -> None:
    """1,500 steps at two a second are 12 min; the newest loss stands at its curve's end."""
    lines = screen(hour(tmp_path))
    bar, loss = lines[1], lines[2]

    assert bar.startswith("step     1,500 of 3,000  ████")
    assert bar.endswith("  50 %  done in 12 min")
    assert loss.split() == ["loss", "".join(loss.split()[1:-1]), "1.01"]
    assert (loss.split()[1][0], loss.split()[1][-1]) == ("█", "▁")


def test_a_ranks_row_in_full(tmp_path: Path) -> None:
    """Host, rank, heartbeat's age, step, step time (the slowest marked), GPU, CPU, memory, how often it ended a round."""
    lines = screen(hour(tmp_path), 88)
    at = next(i for i, line in enumerate(lines) if line.startswith("  HOST"))

    assert lines[at] == "  HOST         RANK   BEAT     STEP STEP TIME   GPU GPU MEM GPU PWR    CPU     MEM FAILS"
    assert lines[at + 1] == "▶ node1           0  0.5 s    1,500    500 ms  93 % 61.4 GB   412 W  250 % 12.6 GB"
    assert lines[at + 6] == "  node3           5  0.5 s    1,500  ▲ 600 ms  93 % 61.4 GB   412 W  250 % 12.6 GB     2"


def test_a_rank_fails_that_ends_a_round(tmp_path: Path) -> None:
    """The first to fail and those that lag behind in a hang count; the victims of another's failure do not."""
    assert LiveFeed().detail(hour(tmp_path).paths, 0.0).failures == {5: 2, 2: 1}


def test_goodput_cost_and_advice(tmp_path: Path) -> None:
    """As in status: in one line what fits 80 columns, the cost below where it does not, then when to save and be warned."""
    wide, narrow = (screen(hour(tmp_path / str(width)), width) for width in (120, 80))
    joined = next(line for line in wide if line.startswith("goodput"))
    at = next(i for i, line in enumerate(narrow) if line.startswith("goodput"))

    assert joined.endswith(COST)
    assert [narrow[at], narrow[at + 1]] == [joined.removesuffix(COST), f"cost     {COST.strip()}"]
    assert narrow[at + 2] == "advice   save every 2 min; saving needs 80 s of warning"
    assert narrow[at + 2] in wide


def test_what_can_be_missed_gives_way(tmp_path: Path) -> None:
    """On a low terminal advice and cost leave their lines to ranks and events: eight and three come first."""
    story = hour(tmp_path)
    for height, cost, advice in ((22, True, True), (21, True, False), (20, False, False)):
        lines = screen(story, 80, height)
        assert any(line.startswith("cost ") for line in lines) == cost, height
        assert any(line.startswith("advice ") for line in lines) == advice, height
        assert sum("  0.5 s  " in line for line in lines) == 8, height
        assert lines[-3].endswith("first step (601)"), height


def test_a_long_reason_is_told_to_its_end(tmp_path: Path) -> None:
    """In two lines on 80 columns, with a sign where even these are too few."""
    story, end = begun(tmp_path), "the same exception came at the same step 3 times: the program is wrong."
    story.outcome("failed", f"Rank 5 ran out of GPU memory; {end}", step=7, exit_code=8)

    assert " ".join(line.strip() for line in screen(story)).count(end) == 1
    assert [line[:9].strip() for line in screen(story, 40)[2:5]] == ["reason", "", "goodput"]
    assert screen(story, 40)[3].endswith(" …")


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (88, "HOST RANK BEAT STEP STEP TIME GPU GPU MEM GPU PWR CPU MEM FAILS"),
        (80, "HOST RANK BEAT STEP STEP TIME GPU GPU MEM CPU MEM FAILS"),
        (79, "HOST RANK BEAT STEP STEP TIME GPU GPU MEM CPU FAILS"),
        (60, "HOST RANK BEAT STEP STEP TIME GPU FAILS"),
        (40, "HOST RANK BEAT STEP"),
    ],
)
def test_narrow_terminals_show_whole_columns(tmp_path: Path, width: int, columns: str) -> None:
    """No column is cut in two."""
    head = next(line for line in screen(hour(tmp_path), width) if line.startswith("  HOST"))

    assert " ".join(head.split()) == columns


def test_hidden_ranks_are_counted_where_the_table_is_full(tmp_path: Path) -> None:
    """At the head's end there is no room for it in 80 columns: then beside HOST."""
    story = picture(begun(tmp_path), ranks=256)
    head = next(line for line in screen(story) if line.startswith("  HOST"))
    shown = sum(" 0.5 s " in line for line in screen(story))

    assert head.startswith(f"  HOST (+{256 - shown})".ljust(14) + " RANK   BEAT")


def test_a_beat_tells_silence_of_runs_that_go_on_alone(tmp_path: Path) -> None:
    """An age of hours fits its column; a run that is over has no heartbeats to miss."""
    story = picture(begun(tmp_path)).wait(5 * 3600 + 120)
    assert next(line for line in screen(story) if line.startswith("▶")).split()[:5] == ["▶", "node1", "0", "5", "h"]
    story.outcome("completed", "All steps are done.", step=1500, exit_code=0)

    assert next(line for line in screen(story) if line.startswith("▶")).split()[:4] == ["▶", "node1", "0", "1,500"]


def test_a_log_is_followed(tmp_path: Path) -> None:
    """What a rank writes is there at the next look, at the end; pgup shows what stands above."""
    story = picture(begun(tmp_path))
    view = View(LiveFeed(), stop=lambda paths: "", run=story.paths)

    def look() -> list[str]:
        return [line.plain.rstrip() for line in view.render(80, 6, story.t)[1:-1]]

    look()
    view.press("l")
    assert look()[0] == "nothing written yet"
    log = story.paths.rank_log(0, 0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"step {i}\n" for i in range(10)))
    assert look() == ["step 6", "step 7", "step 8", "step 9"]
    with log.open("a") as f:
        f.write("step 10\nloss 0")
        f.flush()
        assert look() == ["step 8", "step 9", "step 10", "loss 0"]
        f.write(".25\n")
    assert look()[-1] == "loss 0.25"
    view.press("pgup")
    assert look()[0] == "step 0"

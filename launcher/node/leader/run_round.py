"""Runs one round: starts its store and workers, watches for what ends it, ends it and reports what happened."""

from __future__ import annotations

import math

from launcher.node.checkpoints import trash
from launcher.node.leader.agreed_stop import AgreedStop
from launcher.node.leader.board import OVER, Board, Interrupt, caused
from launcher.node.leader.gather_nodes import without
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import picture_every_s
from launcher.node.leader.resuming import choose_resume
from launcher.node.leader.revivals import tell_line
from launcher.node.leader.rounds import Round
from launcher.node.policy.budgets import BAD_NODE_FAILURES
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.policy.first_failure import (
    Failure,
    cause_of,
    first_failure,
    is_victim,
    left_by_itself,
    same_failures,
    signature,
    symptom_only,
    victims,
)
from launcher.node.policy.hangs import LONG_S, HangWatch
from launcher.node.wire.messages import (
    SHUTDOWN_S,
    DumpStacks,
    EndRound,
    ForwardTerm,
    RankPlace,
    ResumeFrom,
    StartRound,
    StartStore,
)
from launcher.run.messages import Pause, Release
from launcher.run.state import forget_request
from launcher.run.units import all_ranks, named_ranks, plural

_STARTING_AGREE_S = 2.0
"""While the round starts, the leader waits so long for answers to a pause: reports of the first steps may be under way."""


async def drive_round(board: Board, number: int) -> Evidence:
    """Run round ``number`` to its end; nothing of it is alive when this returns."""
    board.stop, board.hang, board.term_sent, board.usr2_sent = None, None, False, False
    if board.interrupt is not None:
        board.interrupt.started = False  # the ranks of this round have not been told
    resume = await choose_resume(board)
    if isinstance(resume, Evidence):
        board.round = None  # what the last round had finished does not count for this decision
        return resume
    nodes = board.nodes.healthy[: board.spec.nodes]
    if len(nodes) < board.spec.needed_nodes:
        return without(board)
    _name_the_size(board, nodes)
    tell_line(board)
    spec = board.spec
    hangs = HangWatch(
        spec.restart.hang_floor_s,
        start_s=spec.init_timeout_min * 60 + 60,
        alarms=board.budgets.restarts[Kind.HANG.value],
        last_progress=board.now(),
    )
    round_ = Round(
        number,
        nodes,
        tasks_per_node=spec.tasks_per_node,
        resume=resume,
        hangs=hangs,
        script=spec.work.kind in ("script", "module"),
    )
    round_.began = board.now()
    board.round, board.history.round, board.phase = round_, number, "training"
    board.saver.begin_round(round_, board.now())
    evidence = await _start(board, round_)
    while evidence is None:
        evidence = await board.until(lambda now: _verdict(board, round_, now))
    return await _end(board, round_, evidence)


def _name_the_size(board: Board, nodes: list[Node]) -> None:
    """Warn, once for each size, that a round has fewer nodes than the job wants."""
    if len(nodes) < board.spec.nodes and len(nodes) not in board.sizes:
        kind, samples = board.spec.work.kind, "the samples of each step stay the same"
        if kind == "function":
            samples = "a function that does not loop over worker.batches takes fewer samples per step"
        elif kind != "task":
            samples = "a script that does not loop over run.batches takes fewer samples per step"
        board.history.warn(
            f"training goes on with {plural(len(nodes), 'node')} of {board.spec.nodes}: {samples}; what depends on the number of ranks"
            " changes (random numbers of each rank, batch statistics, per_rank state)"
        )
        board.sizes.add(len(nodes))


# --- the start ---


async def _start(board: Board, round_: Round) -> Evidence | None:
    """Start the store, then the workers. Evidence when that fails."""
    first = round_.nodes[0]
    first.send(StartStore(round=round_.number))

    def look(now: float) -> Evidence | int | None:
        if round_.settled(now) or board.interrupted:
            return _verdict(board, round_, now)
        return board.ports.get(round_.number)

    # It is forked from the process that imports torch, which takes minutes on a cold or busy file system.
    limit_s = max(board.timing.store_s, board.spec.init_timeout_min * 60)
    found: Evidence | int | None = await board.until(look, timeout_s=limit_s)
    if isinstance(found, Evidence):
        return found
    if found is None:
        return Evidence(Kind.STORE, f"the store on {first.host} did not start within {limit_s:.0f} s")
    round_.master_port = port = found
    chosen, resume = round_.resume, None
    if chosen:
        resume = ResumeFrom(step=chosen.step, own=chosen.path.parent == board.paths.checkpoints)
    every_s = picture_every_s(round_.world_size)
    for group_rank, node in enumerate(round_.nodes):
        workers = [RankPlace(rank=r.rank, local_rank=r.local_rank) for r in round_.of_node[node]]
        node.send(
            StartRound(
                round=round_.number, world_size=round_.world_size, master_addr=round_.master_addr, master_port=port,
                resume=resume, group_rank=group_rank, workers=workers, detail_every_s=every_s, mlflow_run_id=board.tracking.mlflow_run_id,
            )
        )  # fmt: skip
    board.history.event(
        "round_started",
        world_size=round_.world_size,
        master_addr=round_.master_addr,
        master_port=port,
        ranks=[
            {"rank": r.rank, "host": r.node.host, "node": r.node.index, "local_rank": r.local_rank}
            for r in round_.ranks
        ],
        spares=[n.host for n in board.nodes.healthy if n not in round_.of_node],
        resume_step=resume and resume.step,
        resume_path=chosen and str(chosen.path),
    )
    if round_.number == 0:
        board.notifier.tell(
            "started", f"{board.spec.name} trains on {', '.join(n.host for n in round_.nodes)}.", once=True
        )
    round_.hangs.progressed(board.now())
    return None


# --- what ends it ---


def _verdict(board: Board, round_: Round, now: float) -> Evidence | None:
    """Return why the round is over; None while it is not. Details of failures are added when every worker has ended."""
    if board.fenced:
        return OVER
    # A round that ends while it is being stopped is the end of the stop: a new one would be stopped before its first step.
    stop = board.interrupt if board.interrupt and board.interrupt.evidence.kind is not Kind.NODE_LEAVES else None
    if round_.all_finished and (round_.lost or stop is not None):
        return _finished(board, round_, stop, now)  # what is left is the last commit, which the leader makes alone
    if round_.lost:
        return stop.evidence if stop is not None else _lost(round_)
    if (proof := board.saver.proof) is not None and proof.damage is not None and board.interrupt is None:
        board.saver.trusted.discard(proof.checkpoint.step)  # read as a whole before it is chosen again
        return Evidence(Kind.DAMAGED, f"the checkpoint that the workers resumed from is damaged ({proof.damage})")
    if round_.settled(now):
        if board.interrupt is not None:
            return board.interrupt.evidence
        if proof is not None and proof.pending and any(f.kind == "unloadable" for f in round_.failures):
            return None  # it may be damaged: then an older one is used
        if round_.store_problem and not round_.failures:
            return Evidence(Kind.STORE, round_.store_problem)
        return Evidence(Kind.WORKER_FAILED, "a worker failed")
    if round_.all_finished:
        return _finished(board, round_, stop, now)
    if board.interrupt is not None:
        return _interruption(board, round_, board.interrupt, now)
    return board.hang or board.at_risk or _grown(board, round_)


def _grown(board: Board, round_: Round) -> Evidence | None:
    """Return the evidence that a node has come which the job wants, once what was done without it is saved."""
    if len(round_.nodes) >= board.spec.nodes:
        return None
    saved_t = board.saved_t
    new = next((n for n in board.nodes.healthy if n.joined_at < saved_t and n not in round_.of_node), None)
    return None if new is None else Evidence(Kind.MORE_NODES, f"{new.host} can be used again")


def _lost(round_: Round) -> Evidence:
    hosts, why = tuple(node.host for node in round_.lost), round_.lost[0].lost_why
    if why == "cut_off":  # none of them is to blame
        return caused(Kind.NODE_LOST, "no other node responds: the leader's host may be cut off")
    how = "stopped responding" if why == "silent" else "is gone (its connection closed)"
    return caused(Kind.NODE_LOST, f"node {hosts[0]} {how}", hosts)


def _finished(board: Board, round_: Round, stop: Interrupt | None, now: float) -> Evidence | None:
    """Return the end of all work, once the last checkpoint is committed; the stop, where its time is over before that."""
    saver = board.saver
    if saver.is_committing(round_.last_finished) or (saver.proof is not None and saver.proof.pending):
        return stop.evidence if stop is not None and now >= stop.deadline else None
    if last_is_saved(board, round_):
        return Evidence(Kind.DONE, "every rank has finished")
    return caused(
        Kind.LAST_SAVE, f"the last checkpoint could not be written: {saver.last_error or 'not every rank saved'}"
    )


def last_is_saved(board: Board, round_: Round) -> bool:
    """Return whether the last checkpoint of ranks that have finished is committed, or there is none to wait for."""
    saver, last = board.saver, round_.last_finished
    if saver.is_committed(last):
        return True
    # A rank that has finished sends no part any more: what is open stays so (a script may end by os._exit while it saves).
    lost = saver.is_open(last) or round_.unsaved or last in saver.failed_steps
    return not (saver.is_committing(last) or lost)


def _interruption(board: Board, round_: Round, it: Interrupt, now: float) -> Evidence | None:
    """Carry out a stop that was asked for; evidence when it is over."""
    over = it.evidence
    if not it.started:
        if round_.master_port is not None and not _all_up(round_) and now - it.began < _STARTING_AGREE_S:
            return None
        it.started = True
        if not _begin_stop(board, round_, it, now):
            return over
    if now >= it.deadline:
        return over
    stop = board.stop
    if round_.script and round_.tally["exited"] == round_.world_size:
        return None if stop is not None and stop.step is not None and board.saver.is_committing(stop.step) else over
    waited_s = now - it.began if it.deadline == math.inf else 0.0  # a deadline ends the others
    if waited_s > board.timing.agree_s + LONG_S:
        return over  # a worker hangs
    if stop is None or not stop.ranks:
        return None  # scripts: any exit after the forwarded TERM means stopped
    if stop.step is None:
        if not round_.all_ready and now - it.began > _STARTING_AGREE_S:
            return over  # some rank has not joined the process group: no optimizer step can have been done
        if waited_s > board.timing.agree_s:
            if board.term_sent:
                return over  # some ranks have received TERM, which cannot be withdrawn
            round_.send(Release())
            forget_request(board.paths)
            board.history.warn(
                "the workers did not agree on a step to stop at; the stop is withdrawn, training continues"
            )
            board.stop = board.interrupt = None
        return None
    if stop.step <= round_.first and stop.pending:
        return over  # no unit was entered: there is nothing to finish and nothing to save
    if not stop.complete or round_.tally["over"] < round_.world_size:
        return None
    # A worker's shard comes before its "stopped": what is not being committed by now never will be.
    if board.saver.is_committing(stop.step):
        return None
    if round_.stopped_at is None:
        round_.stopped_at = now
    return None if round_.script and now - round_.stopped_at < SHUTDOWN_S else over  # scripts close what they have open


def _all_up(round_: Round) -> bool:
    return round_.all_ready or all(r.heartbeat_t is not None for r in round_.ranks)


def _begin_stop(board: Board, round_: Round, it: Interrupt, now: float) -> bool:
    """Tell the workers to stop; false when there is nothing to wait for."""
    left = None if it.deadline == math.inf else round(it.deadline - now, 1)
    waiting, cause = _all_up(round_), it.evidence.kind.value
    board.history.event("stop_requested", cause=cause, deadline_s=left, save=waiting)
    if not waiting:
        return False  # some worker is not even up: no optimizer step was done in this round
    if round_.plain:
        board.term_sent = True
        round_.tell_nodes(ForwardTerm(round=round_.number, cause=cause, left_s=left))
    asked = [r for r in round_.ranks if r.attached and r.stopped is None]
    board.stop = stop = AgreedStop({r.rank for r in asked}, save=board.spec.checkpoint.enabled)
    for rank in asked:
        if rank.finished is not None:
            stop.finished(rank.rank, rank.finished)
    round_.send(Pause(), [r.rank for r in asked])
    return True


# --- the end ---


async def _end(board: Board, round_: Round, evidence: Evidence) -> Evidence:
    """End every worker, wait until none is left and every complete save is committed, then report what happened."""
    if evidence.kind is Kind.HANG:
        round_.tell_nodes(DumpStacks(round=round_.number))
        await board.until(lambda now: round_.all_nodes(round_.stacks), timeout_s=board.timing.dump_s)
    round_.ending = True
    round_.tell_nodes(EndRound(round=round_.number))

    if await board.until(lambda now: round_.all_nodes(round_.cleared), timeout_s=board.timing.clear_s) is None:
        for node in round_.nodes:
            if node.here and node.index not in round_.cleared:
                board.exclude(node, f"it could not end its workers within {board.timing.clear_s:.0f} s")
    late = lambda: board.fenced or ((it := board.interrupt) is not None and board.now() >= it.deadline)  # noqa: E731
    await board.saver.quiesce(lambda: board.interrupt is not None or board.fenced, late)
    await board.blocking(lambda: trash.move_unfinished(board.paths, board.claim))
    trash.empty_in_thread(board.paths)
    await board.look_at_own_files()  # nobody writes any more; what came since the last look is progress, too
    evidence = _explain(board, round_, evidence)
    _blame(board, round_, evidence)
    if board.stop is not None or board.term_sent:
        lost = None if round_.plain else max(0, round_.step - (board.saver.last_step or 0))
        board.history.event("stopped", step=round_.step, lost_steps=lost)
    board.history.event("round_ended", why=evidence.text)
    return evidence


def _explain(board: Board, round_: Round, evidence: Evidence) -> Evidence:
    """Name the first failure, now that every worker has ended."""
    failures = round_.failures
    spoken = [f for f in failures if not (f.after_end and f.exception is None)]
    if evidence.kind in (Kind.WORKER_FAILED, Kind.STORE, Kind.HANG) and round_.lost and symptom_only(spoken):
        evidence = _lost(round_)  # the other failures follow from the lost node
    if evidence.kind is Kind.WORKER_FAILED and spoken and symptom_only(spoken):
        spoken = round_.left_early(spoken) + spoken
    first = first_failure(spoken)
    follow = evidence.kind in (Kind.NODE_LOST, Kind.HANG)
    board.failures += follow
    if first is None or evidence.kind in (Kind.DONE, Kind.FENCED):
        return evidence
    if follow or (evidence.kind is Kind.STORE and is_victim(first)):
        _report_victims(board, spoken, after=min(f.t for f in spoken))
        return evidence
    same = same_failures(first, spoken)
    failed = _one_failure(board, round_, first, same)
    alike = set(same)
    _report_victims(board, [f for f in spoken if f not in alike], after=first.t)
    # Otherwise the allocation is going away, whatever failed meanwhile.
    return failed if evidence.kind in (Kind.WORKER_FAILED, Kind.STORE) else evidence


def _one_failure(board: Board, round_: Round, first: Failure, same: list[Failure]) -> Evidence:
    """Report the failure of one rank, or of all that failed in the same way as the first."""
    everybody = len(same) == round_.world_size
    who = all_ranks(len(same)) if everybody else named_ranks(f.rank for f in same)
    cause = cause_of(first, who if len(same) > 1 else "")
    waited = is_victim(first) or cause.kind == "timeout"  # for a rank that nobody knows: its own host is not to blame
    key = signature(first, first.step)
    before = board.budgets.same[key] if key is not None else 0
    stepped = round_.stepped or (first.step or 0) > round_.first
    refused = everybody and left_by_itself(first) and not stepped and not board.budgets.progressed
    board.failures += 1
    board.history.event(
        "worker_failed",
        rank=first.rank,
        host=first.host,
        step=first.step,
        cause=cause,
        ranks=[{"rank": f.rank, "host": f.host} for f in same] if len(same) > 1 else [],
        refused=refused or None,
        waited=waited or None,
    )
    refusals = board.budgets.refusals[first.exit_code or 0] if refused else 0
    hosts = () if waited or first.exit_code == 0 else tuple(dict.fromkeys(f.host for f in same))
    return Evidence(Kind.WORKER_FAILED, cause.text or "", cause, hosts, first.rank, first.step, before, refusals)


def _blame(board: Board, round_: Round, evidence: Evidence) -> None:
    """Exclude a host whose workers fail or hang repeatedly without progress, or for a broken GPU: a spare replaces it.

    Where there is no spare, the next attempt asks for other hosts; a GPU that has failed twice is not tried a third time.
    """
    hosts = evidence.hosts or tuple(round_.broken_gpus)
    if evidence.kind not in (Kind.WORKER_FAILED, Kind.HANG) or len(hosts) != 1:
        return
    blame = hosts[0], board.budgets.advances
    if blame not in board.blamed:
        board.blamed.clear()
    board.blamed.append(blame)
    broken = blame[0] in round_.broken_gpus or (evidence.cause is not None and evidence.cause.kind == "gpu")
    again = len(board.blamed) >= BAD_NODE_FAILURES
    if not again and not broken:
        return
    why = "one of its GPUs failed" if broken else f"its workers failed {len(board.blamed)} times in a row"
    for node in board.nodes.all:
        if node.host != blame[0] or node.bad is not None:
            continue
        spared = len(board.nodes.healthy) > board.spec.needed_nodes
        if spared or (broken and again):
            board.exclude(node, why)
        else:
            node.suspect = why


def _report_victims(board: Board, failures: list[Failure], *, after: float) -> None:
    if failures:
        board.history.event("victims", ranks=victims(failures, after=after))

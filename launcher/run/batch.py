"""What a run's batch script and the launcher's processes say to each other."""

from __future__ import annotations

MARK = "launcher: start "
"""What the batch script writes before it calls srun, followed by the allocation's life: the log outlives requeues."""
LOG = "LAUNCHER_AGENT_LOG"
"""The variable that names the log of an agent that is started again."""
SHELL = "LAUNCHER_BATCH_SHELL"
"""The variable that names the process of the batch script's shell to the keeper, which that shell starts through another one."""
COMPLETED = 64
"""Exit status of the teardown that tells the batch script of a completed run: the job is COMPLETED, whatever single tasks
ended with."""
JUDGED = 65
"""The same for a run that has not completed, or not by this job: there is nothing left to do. After any other status the run's
folder, or Python on it, is away: the batch script asks again, and ends FAILED in the end, so that no job that waits for it starts."""
GONE = 66
"""Exit status of a leader whose run's folder is gone for good, and so of srun and the job: there is no teardown to wait for."""
UNSEEN = 72
"""Exit status of a task whose node does not see the run's folder. SLURM before 23.02 does not start such a task; newer ones
make the folder of its log, on that node alone."""
LAST_WORDS = "launcher: error: "
"""Begins the sentence with which an agent, or the leader beside it, says why it cannot go on. Setup lines print errors, too, and go on."""

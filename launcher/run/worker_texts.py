"""Sentences that workers write and that the submitting side looks for, and the options they name."""

from __future__ import annotations

UNSAFE_LOAD = "--unsafe-load"
"""The option of ``resubmit`` by which checkpoints of older versions may be unpickled in full."""
UNSAFE_LOAD_CODE = f"--code {UNSAFE_LOAD}"
"""The same with code that was corrected for it."""
NOT_REGISTERED = "not registered, so not resumed: "
"""How a rehearsal's warning begins that names what user code forgot."""
UNORDERED = (
    "a resume will differ in the last bits: DistributedDataParallel adds up the gradients of its first step in another "
    "order than those of later steps"
)
"""How the warning of a model begins whose buckets could not be brought into their final order."""
NOT_ALIKE = (
    "the ranks hold different weights although DistributedDataParallel keeps them equal: a checkpoint has those of rank 0, "
    "and a resume gives them to all"
)
"""The warning of a large state that several ranks would have written."""
NOT_TOGETHER = (
    "rank 0 writes the whole state from now on: a rank that writes a share came to three saves in a row more than ten seconds "
    "later than rank 0"
)
"""The warning of a large state whose writers do not come to a save together."""
UNSTEPPED = (
    "an item of worker.batches() ended without an optimizer step: every item counts as one, and gradients that are summed over several "
    "items are in no checkpoint; use accumulate= for that"
)
"""The warning of gradients that are accumulated by hand."""
ADDED_UP = (
    "a step of run.steps() changed gradients and ended without an optimizer step: gradients that are summed over several steps are in no "
    "checkpoint; sum them within one step of run.steps()"
)
"""The same in a loop of the user's own."""
REPEATED = (
    "worker.batches() was called again for the same data: a resume runs the code between these loops again; "
    "loop over worker.epochs(n), and over batches() inside"
)
"""The warning of epochs that the launcher does not know of."""
ORDER_KEPT = (
    "the samples keep the order in which they have begun, although seed or shuffle is another now: in a new one some would be used twice and "
    "others never; it begins with the next epoch of worker.epochs(), or the next loop over batches()"
)
"""The warning of a seed that was changed while samples of an epoch are used."""
UNRESTORED = (
    "random numbers do not continue from the checkpoint: loop over run.steps(), "
    "or call run.restore_rng() right before the first step"
)
"""The warning of a resumed loop that restored nothing."""
UNSAVED = (
    "no checkpoint of this run will be made: register() what training changes, or fill save_dir() when should_save() says so; "
    "files that the script saves itself belong in checkpoint.watch (docs/scripts.md)"
)
"""The warning of a loop whose steps are counted and whose state nobody saves."""
UNREAD = (
    "the steps go on from a checkpoint that this script has not asked for: what is trained began anew, unless it was loaded another way; "
    "load run.resume_path before the loop (docs/scripts.md)"
)
"""The warning of a script that saves a folder and does not read it."""

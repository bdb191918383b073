"""What the lines of a log tell of the end of a process."""

from __future__ import annotations

from launcher.run.tracebacks import last_stack, last_traceback, parting_traceback, thread_tracebacks, users_lines

CRASH = """\
loading the data
Fatal Python error: Segmentation fault

Thread 0x00007f2 (most recent call first):
  File "/env/lib/python3.11/site-packages/ddp/launcher/training/process/reporter.py", line 55 in beat
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f1 (most recent call first):
  File "/runs/r/code/ops.py", line 12 in scale
  File "/runs/r/code/train.py", line 40 in main
  File "/runs/r/lib/launcher/training/start/main.py", line 80 in main

Extension modules: numpy.core._multiarray_umath, torch._C (total: 42)
""".splitlines()
TRACEBACK = """\
Traceback (most recent call last):
  File "/runs/r/lib/launcher/training/start/scripts.py", line 70, in _guarded
    program()
  File "/runs/r/code/train.py", line 7, in main
    raise ValueError("bad label 11")
ValueError: bad label 11
""".splitlines()


def test_the_users_lines_are_kept_and_the_launchers_dropped() -> None:
    """Of a crash the current thread's frames in the user's code stay; other threads, the launcher's frames, extension modules go."""
    assert users_lines(CRASH) == [
        "loading the data",
        "Fatal Python error: Segmentation fault",
        "",
        "",
        "Current thread 0x00007f1 (most recent call first):",
        '  File "/runs/r/code/ops.py", line 12 in scale',
        '  File "/runs/r/code/train.py", line 40 in main',
        "",
    ]
    assert users_lines(TRACEBACK) == [TRACEBACK[0], *TRACEBACK[3:]]


def test_a_crash_of_a_thread_without_python_is_told_by_the_main_threads_place() -> None:
    """NCCL's watchdog aborts in a thread that has no Python frame: the user's code is in the main thread, dumped last, deep or not."""
    frames = [f'  File "/runs/r/code/net.py", line {n} in layer_{n}' for n in range(60)]
    crash = [
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007f2 (most recent call first):",
        '  File "/runs/r/lib/launcher/training/process/reporter.py", line 55 in beat',
        "",
        "Thread 0x00007f1 (most recent call first):",
        *frames,
        "",
        "Extension modules: numpy",
    ]
    kept = users_lines(crash)[-30:]
    stack = last_stack(kept)
    assert stack is not None
    assert (stack.exception, stack.frames[-1].function) == ("Aborted", "layer_0")
    assert not any("reporter" in line or "Extension" in line for line in kept)


def test_a_traceback_after_a_stack_is_no_part_of_it() -> None:
    """A dump that the user asked for, and then an exception."""
    stack = last_stack(
        ["Thread 0x00007f1 (most recent call first):", '  File "/code/io.py", line 3 in wait', *TRACEBACK]
    )
    assert stack is not None
    assert [f.function for f in stack.frames] == ["wait"]


def test_lines_that_look_like_a_crash_and_are_none_stay() -> None:
    """Only after "Fatal Python error" are other threads' stacks left out: a dump that the user asked for is theirs."""
    dump = ["Thread 0x00007f2 (most recent call first):", '  File "/runs/r/code/io.py", line 3 in wait']
    assert users_lines(dump) == dump


def test_the_stack_of_a_crash_is_the_current_threads() -> None:
    """The innermost frame is the user's, whatever other threads were dumped before."""
    stack = last_stack(users_lines(CRASH))
    assert stack is not None
    assert (stack.exception, stack.frames[-1].function, stack.frames[-1].line) == ("Segmentation fault", "scale", 12)


def test_the_launchers_own_threads_are_passed_over() -> None:
    """A frozen rank's control thread may be dumped last: the stack is that of the thread which has a frame of the user's."""
    dump = [
        "Thread 0x00007f2 (most recent call first):",
        '  File "/runs/r/code/io.py", line 3 in wait_for_lock',
        "Thread 0x00007f1 (most recent call first):",
        '  File "/runs/r/lib/launcher/run/messages.py", line 122 in receive',
        '  File "/usr/lib/python3.11/threading.py", line 982 in run',
    ]
    stack = last_stack(dump)
    assert stack is not None
    assert stack.frames[-1].function == "wait_for_lock"


def test_a_traceback_tells_of_the_end_only_where_it_was_said_last() -> None:
    """One that the program caught and went on from is no cause of its exit."""
    found = parting_traceback([*TRACEBACK, "exiting"])
    assert found is not None
    assert (found.exception, found.message.splitlines()[0]) == ("ValueError", "bad label 11")
    assert parting_traceback([*TRACEBACK, *[f"step {n}" for n in range(9)]]) is None


def test_torchs_prefix_of_a_rank_is_no_part_of_a_traceback() -> None:
    """``[rank3]: `` before every line, as torch's excepthook puts it."""
    found = last_traceback([f"[rank3]: {line}" for line in TRACEBACK])
    assert found is not None
    assert (found.exception, found.frames[-1].line) == ("ValueError", 7)


def test_threads_that_died_are_told_with_their_names() -> None:
    """`threading.excepthook` prints them, and the process goes on, waiting for what they would have made."""
    log = """step 3
Exception in thread prefetch-2:
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/home/ada/net/data.py", line 12, in read
    raise ValueError("shard 9 is lost")
ValueError: shard 9 is lost
waiting for data""".splitlines()
    ((name, trace),) = thread_tracebacks(log)

    assert (name, trace.exception, trace.message.splitlines()[0]) == ("prefetch-2", "ValueError", "shard 9 is lost")
    assert trace.frames[-1].line == 12
    assert thread_tracebacks(["Exception in thread x:", "a word"]) == []


def test_torchs_warning_of_hosts_without_names_is_no_line_of_the_users() -> None:
    """It works all the same; told as a run's last words it misleads."""
    warned = (
        "[W1125 12:34:01.190321432 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )

    assert users_lines(["reading data", warned]) == ["reading data"]


def test_frames_of_torchs_c_plus_plus_are_nobodys() -> None:
    """A watchdog's abort prints dozens of them, twice: the line that says something would be cut away before them."""
    lines = [
        "what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(...)",
        "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):",
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f12 in /opt/lib/libc10.so)",
        "frame #5: <unknown function> + 0xdc253 (0x7f34 in /usr/lib/x86_64-linux-gnu/libstdc++.so.6)",
        "frame #7: a user's own line about the seventh frame of a video",
    ]

    assert users_lines(lines) == [lines[0], lines[4]]

"""Tools that run what a model wrote, in a process of their own with limits on all it can use.

    process.py   our side: start a worker, call it, read a typed result, end it
    worker.py    the worker's side: limits on itself, then one call after another
    sql.py       a tool: one read-only query on tables that come with it

A tool is a file of the standard library alone with one function,

    def call(argument: dict) -> tuple[str, str]     # ("ok" | "refused" | ..., text)

and keeps nothing between calls, so a worker that has died is replaced and nobody notices:

    result = process.shared(Tool(sql.__file__)).call({"tables": ..., "query": "SELECT 1", ...})

What is limited: time by the clock, processor time, memory, open files, processes (none), written
files (none), and the length of a result. This keeps hostile queries and runaway ones from harm. It
is no jail for programs that a model wrote: the worker can still read files and open sockets.
"""

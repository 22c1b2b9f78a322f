"""How every kernel is handed out: workers take tickets from one counter, on whatever threads they run."""

from typing import Any

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.vector import after, compiled, floats_at, longs_at, take_ticket


@compiled
def was_last(c, head):
    """Says that a part of a head is done; whether all of them are. Whoever did the last adds the parts up, in their order."""
    return take_ticket(after(longs_at(c[at.FINISHED]), head)) == c[at.PARTS] - 1


def handed_out(task: Any) -> Any:
    """The function that a kernel is entered by, for `task(c, ticket, scratch)`: one ticket, in the memory of its worker."""

    def work(first, last, c):
        """Workers first … last − 1 take tickets until there are none."""
        for worker in range(first, last):
            scratch = after(floats_at(c[at.SCRATCH]), worker * c[at.SCRATCH_SIZE])
            while True:
                ticket = take_ticket(after(c, at.NEXT_TICKET))
                if ticket >= c[at.TICKETS]:
                    break
                task(c, ticket, scratch)

    return work

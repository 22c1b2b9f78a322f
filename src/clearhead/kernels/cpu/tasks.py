"""How every kernel is handed out: workers take tickets from one counter, on whatever threads they run."""

from typing import Any

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.vector import after, floats_at, take_ticket


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

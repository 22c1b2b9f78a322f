"""`clearhead bench`: attention against its neighbours on the machine at hand.

`machine` measures what the hardware can do, `cases` says what is run and how much useful work it is, `candidates` and
`engines` who runs it, `measure` takes the times and does the arithmetic on them, `run` puts these together for one case,
`document` and `report` hand the numbers over as JSON and as text, `plot` draws them.
"""

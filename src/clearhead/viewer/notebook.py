"""Traces and observations in a notebook: the viewer's page as a widget, or a picture and a table without anywidget."""

from __future__ import annotations

import base64
import html
from typing import Any

from clearhead.errors import ClearheadError
from clearhead.observables import Observation
from clearhead.trace import Call, Trace
from clearhead.viewer.data import Shown
from clearhead.viewer.joined import script, style
from clearhead.viewer.picture import picture
from clearhead.viewer.questions import Gallery

SHOWN = 40  # heads with a role listed in the table that stands in for the widget


def bundle(thing: Trace | Observation, **given: Any) -> dict[str, Any]:
    """What a notebook shows for a trace or an observation, by MIME type (IPython's `_repr_mimebundle_`)."""
    trace = thing if isinstance(thing, Trace) else Trace([Call("", 0, thing)])
    found = {"text/plain": repr(thing)}
    if not trace.calls:
        return found
    shown = Shown(trace, name="this trace" if thing is trace else "this observation")
    found["text/html"] = static(shown)
    try:
        made = widget(shown)
    except ImportError:
        return found
    return {**found, **(made._repr_mimebundle_(**given) or [{}])[0], "text/plain": found["text/plain"]}


def widget(*shown: Shown) -> Any:
    """The page as an anywidget, for Jupyter, VS Code, Colab and marimo. Needs `clearhead[notebook]`."""
    import anywidget
    import traitlets

    class Viewer(anywidget.AnyWidget):
        """The viewer's page; what it asks is answered by this kernel."""

        _esm = script("widget")
        style = traitlets.Unicode(style()).tag(sync=True)

    gallery = Gallery(list(shown))

    def answer(made: Any, message: Any, _: Any) -> None:
        said: dict[str, Any] = {"number": message.get("number")}
        try:
            found = gallery.ask(str(message.get("question")), dict(message.get("parameters") or {}))
        except ClearheadError as error:
            made.send({**said, "error": str(error)})
            return
        made.send(said, buffers=[found.packed()])

    made = Viewer()
    made.on_msg(answer)
    return made


def static(shown: Shown) -> str:
    """A picture of all maps and a table of the heads' roles, for where no widget can run. Nothing in it runs or is fetched."""
    labels = {head: best for head in shown.heads if (best := shown.label(head)) is not None}
    rows = []
    for head, best in list(labels.items())[:SHOWN]:
        cells = (str(head), best.role, f"{best.score:.2f}", f"{best.null:.2f}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    rest, none = len(labels) - SHOWN, len(shown.heads) - len(labels)
    more = f"<p>{rest} more heads with a role: pip install 'clearhead[notebook]' shows all.</p>" if rest > 0 else ""
    more += f"<p>Heads without a role: {none}.</p>" if none else ""
    image = ""
    if shown.map(shown.heads[0]) is not None:
        drawn = base64.b64encode(picture(shown)).decode("ascii")
        image = f'<img alt="Maps of all heads" style="max-width:100%" src="data:image/png;base64,{drawn}">'
    heading = "".join(f"<th>{word}</th>" for word in ("head", "role", "score", "uniform"))
    return (
        f"<div><p>{html.escape(repr(shown.trace))}</p>{image}<table><thead><tr>{heading}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{more}</div>"
    )

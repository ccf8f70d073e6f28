"""A plan in the form that the native pass reads; see ``native/lms_src/apply.h``. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpcckpt.lms.plan import Plan


def text_of(plan: Plan) -> str:
    """Return the lines of a plan, with tabs between the words."""
    return "".join("\t".join(map(str, words)) + "\n" for words in _lines(plan))


def _lines(plan: Plan) -> Iterator[list[str | int]]:
    for out in plan.swap_outs:
        yield ["out", out.name, *out.tensor]
    for back in plan.swap_ins:
        yield ["in", back.name, back.swap_out, *(word for slot in back.consumers for word in slot)]
    for copy in plan.copies:
        inputs = [word for use in copy.inputs for word in use]
        consumers = [word for index, slot in copy.consumers for word in (index, *slot)]
        yield ["copy", copy.name, copy.op, len(copy.inputs), *inputs, *consumers]
    for release in plan.releases:
        yield ["release", release.name, *release.tensor]
    for first, then in plan.edges:
        yield ["edge", first, then]

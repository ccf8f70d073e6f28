"""The charts of a report, as inline SVG that takes its colours from the page. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime

from hpcckpt.reporting.figures import saves_of
from hpcckpt.reporting.markup import Element, add, element
from hpcckpt.reporting.scales import Scale, binary_ticks, number_words, spread, ticks, time_step
from hpcckpt.reporting.story import Job, Save, Story
from hpcckpt.reporting.words import count_words, duration_words, moment_words, rate_words, size_words

WIDTH = 1000.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 14.0, 10.0, 26.0
MAX_SAVES = 1500
MAX_JOBS = 30
MAX_PITCH, MAX_BAR = 150.0, 60.0
Words = Callable[[float], str]


def svg(height: float, title: str, description: str, width: float = WIDTH) -> Element:
    """Return an empty chart that a screen reader can name."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}: {description}",
    )


def shown_saves(story: Story) -> list[Save]:
    """Return the saves that charts show: the newest, where there are very many."""
    return list(story.saves[-MAX_SAVES:])


# -- saves, one after the other ------------------------------------------------------------------


def stall_chart(saves: Sequence[Save], boundaries: Sequence[int]) -> Element:
    """Return how long each save held the training up, and by how much batches were slower besides."""
    height = max([save.stall_s or 0.0 for save in saves] + [save.cost_s or 0.0 for save in saves])
    longest = max((save.stall_s or 0.0 for save in saves), default=0.0)
    chart = svg(190, "Stall", f"of {count_words(len(saves), 'save')}; the longest {duration_words(longest)}")
    y = _vertical(chart, 190, height or 1e-3, ticks(0.0, height or 1e-3), duration_words)
    for save, x, width in _columns(chart, saves, boundaries, 190):
        hint = f"step {save.step}: stall {duration_words(save.stall_s)}, cost {duration_words(save.cost_s)}"
        if save.cost_s is not None and save.cost_s > (save.stall_s or 0.0):
            add(chart, _bar(x, width, y(save.cost_s), y(0), "faint", hint))
        if save.stall_s is not None:
            add(chart, _bar(x, width, y(save.stall_s), y(0), "stall", hint))
    return chart


def bandwidth_chart(saves: Sequence[Save], boundaries: Sequence[int]) -> Element:
    """Return the bytes a second of each save."""
    highest = max((save.bandwidth or 0.0 for save in saves), default=0.0)
    chart = svg(190, "Bandwidth", f"from the call to the commit; at best {rate_words(highest)}")
    y = _vertical(chart, 190, highest or 1.0, binary_ticks(highest or 1.0), rate_words)
    radius = 3.2 if len(saves) <= 120 else 2.0
    for save, x, width in _columns(chart, saves, boundaries, 190):
        if save.bandwidth is not None:
            hint = f"step {save.step}: {rate_words(save.bandwidth)}, {duration_words(save.seconds)} in all"
            add(chart, _dot(x + width / 2, y(save.bandwidth), radius, "bandwidth", hint))
    return chart


def size_chart(saves: Sequence[Save], boundaries: Sequence[int]) -> Element:
    """Return the size of each step, and which of them stand."""
    largest = max((save.nbytes for save in saves), default=0)
    standing = sum(save.state == "stands" for save in saves)
    chart = svg(220, "Size per step", f"{count_words(standing, 'step')} of {len(saves)} stand")
    y = _vertical(chart, 220, (largest or 1) * 1.12, binary_ticks(largest or 1), size_words)
    for save, x, width in _columns(chart, saves, boundaries, 220):
        tags = f" ({', '.join(save.tags)})" if save.tags else ""
        hint = f"step {save.step}: {size_words(save.nbytes)}, {_FATE[save.state]}{tags}"
        kind = "bad" if "damaged" in save.tags else save.state
        add(chart, _bar(x, max(width, 2.0) if save.state == "stands" else width, y(save.nbytes), y(0), kind, hint))
        if save.tags:
            _flags(chart, x + width / 2, y(save.nbytes) - 5, save.tags)
    return chart


_FATE = {"stands": "stands", "removed": "removed", "gone": "gone"}
_SIGNS = {"best": "★", "pinned": "●", "damaged": "✕", "latest": "▾"}


def _flags(chart: Element, x: float, y: float, tags: Sequence[str]) -> None:
    signs = "".join(sign for tag, sign in _SIGNS.items() if tag in tags)
    add(chart, element("text", signs, x=x, y=y, class_="flag", text_anchor="middle"))


def _columns(
    chart: Element, saves: Sequence[Save], boundaries: Sequence[int], height: float
) -> list[tuple[Save, float, float]]:
    """Return each save with the place of its column; draw the axis, and lines where other jobs begin."""
    room = WIDTH - LEFT - RIGHT
    pitch = min(room / max(1, len(saves)), MAX_PITCH)
    base = height - BOTTOM
    for number in boundaries:
        x = LEFT + number * pitch
        add(chart, element("line", x1=x, x2=x, y1=TOP, y2=base, class_="job"))
    add(chart, element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"))
    every = max(1, math.ceil(max(64.0, 9.0 * len(str(saves[-1].step if saves else 0))) / pitch))
    for number in range(0, len(saves), every):
        x = LEFT + (number + 0.5) * pitch
        label = f"{saves[number].step:,}"
        add(chart, element("text", label, x=_within(x, label, WIDTH), y=base + 17, text_anchor="middle"))
    gap = max(0.25 * pitch, pitch - MAX_BAR) if pitch > 3 else 0.0
    return [(save, LEFT + number * pitch + gap / 2, pitch - gap) for number, save in enumerate(saves)]


def boundaries_of(story: Story, saves: Sequence[Save]) -> list[int]:
    """Return before which saves another job begins."""
    found = []
    for job in story.jobs:
        number = next((i for i, save in enumerate(saves) if save.time >= job.began), None)
        if number:
            found.append(number)
    return sorted(set(found))


def _vertical(
    chart: Element, height: float, highest: float, at: Sequence[float], words: Words, *, lowest: float = 0.0
) -> Scale:
    """Draw the vertical axis with its labels, and return its scale."""
    scale = Scale(lowest, highest, height - BOTTOM, TOP)
    for value in at:
        y = scale(value)
        add(chart, element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        add(chart, element("text", words(value) if value else "0", x=LEFT - 8, y=y + 4, text_anchor="end"))
    return scale


def _within(x: float, label: str, width: float) -> float:
    """Return where the middle of a label may stand so that all of it is seen."""
    return min(x, width - 4.0 - 3.6 * len(label))


def _bar(x: float, width: float, top: float, base: float, kind: str, hint: str) -> Element:
    height = max(base - top, 1.0)
    return element("rect", element("title", hint), x=x, y=base - height, width=width, height=height, class_=kind)


def _dot(x: float, y: float, radius: float, kind: str, hint: str) -> Element:
    return element("circle", element("title", hint), cx=x, cy=y, r=radius, class_=kind)


# -- the time line -------------------------------------------------------------------------------


def time_line(story: Story) -> Element:
    """Return the jobs as bars over time, with their saves, failures and restores."""
    jobs = story.jobs[-MAX_JOBS:]
    lane, bottom = 34.0, 30.0
    height = TOP + lane * len(jobs) + bottom
    begin = min([job.began for job in jobs] + ([] if jobs else [save.time for save in story.saves]))
    end = max([job.last for job in jobs] + [begin + 1.0])
    deaths = sum(job.has_died for job in jobs)
    said = f"{count_words(len(jobs), 'job')}, {deaths} of them died, in {duration_words(end - begin)}"
    chart = svg(height, "Time line", said)
    x = Scale(begin, end, LEFT, WIDTH - RIGHT - 8)
    _clock_axis(chart, x, height - bottom)
    for number, job in enumerate(jobs):
        _job_lane(chart, x, job, TOP + lane * number, story)
    return chart


def _clock_axis(chart: Element, x: Scale, base: float) -> None:
    step = time_step(x.high - x.low)
    is_long = x.high - x.low > 86400
    offset = (datetime.fromtimestamp(x.low).astimezone().utcoffset() or datetime.resolution * 0).total_seconds()
    tick = math.ceil((x.low + offset) / step) * step - offset
    while tick <= x.high:
        here = datetime.fromtimestamp(tick).astimezone()
        words = f"{here:%b %d %H:%M}" if is_long else f"{here:%H:%M:%S}" if step < 60 else f"{here:%H:%M}"
        add(chart, element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=base, class_="grid"))
        add(chart, element("text", words, x=min(x(tick), WIDTH - 36), y=base + 18, text_anchor="middle"))
        tick += step


def _job_lane(chart: Element, x: Scale, job: Job, top: float, story: Story) -> None:
    name = job.job or job.host or "job"
    add(chart, element("text", name[-10:], x=LEFT - 8, y=top + 25, text_anchor="end"))
    hint = f"{name}: {moment_words(job.began)}, {duration_words(job.seconds)}, {job.end} {job.reason}".strip()
    width = max(x(job.last) - x(job.began), 3.0)
    kind = f"lane {job.end}"
    bar = element(
        "rect", element("title", hint), x=x(job.began), y=top + 11, width=width, height=20.0, rx=3, class_=kind
    )
    add(chart, bar)
    for save in saves_of(job, story):
        place = x(save.time)
        add(chart, element("line", x1=place, x2=place, y1=top + 16, y2=top + 31, class_="tick"))
    for restore in story.restores:
        if job.began <= restore.time <= job.last:
            text = f"▸{restore.step:,}"
            add(chart, element("text", element("title", f"restored step {restore.step}"), text,
                               x=x(restore.time) - 2, y=top + 8, class_="restore"))  # fmt: skip
    for failure in story.failures:
        if job.began <= failure.time <= job.last:
            words = f"step {failure.step} failed: {failure.kind}"
            add(chart, element("text", element("title", words), "✕", x=x(failure.time), y=top + 26,
                               text_anchor="middle", class_="failed"))  # fmt: skip
    if job.end in {"died", "failed"}:
        add(chart, element("text", "✕", x=x(job.began) + width + 7, y=top + 26, text_anchor="middle", class_="failed"))


# -- metrics -------------------------------------------------------------------------------------

Points = Sequence[tuple[float, float]]


def metric_chart(name: str, points: Points) -> Element:
    """Return a metric over steps; what is not finite is a gap."""
    width, height, left = 480.0, 170.0, 70.0
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    last = number_words(points[-1][1]) if points else "-"
    chart = svg(height, name, f"{count_words(len(points), 'value')}, the last {last}", width)
    if not finite:
        add(chart, element("text", "never a finite value", x=width / 2, y=height / 2, text_anchor="middle"))
        return chart
    low, high = spread([value for _, value in finite])
    y = Scale(low, high, height - BOTTOM, TOP)
    x = Scale(min(step for step, _ in finite), max(step for step, _ in finite), left + 6, width - 12)
    for value in ticks(low, high, 3):
        add(chart, element("line", x1=left, x2=width - 4, y1=y(value), y2=y(value), class_="grid"))
        add(chart, element("text", number_words(value), x=left - 6, y=y(value) + 4, text_anchor="end"))
    for step in ticks(x.low, x.high, 3):
        if step == round(step):
            label = f"{round(step):,}"
            add(chart, element("text", label, x=_within(x(step), label, width), y=height - 8, text_anchor="middle"))
    for piece in _pieces(points):
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in piece)
        add(chart, element("polyline", points=path, class_="metric"))
    for step, value in finite if len(finite) <= 60 else finite[-1:]:
        add(chart, _dot(x(step), y(value), 2.6, "point", f"step {step:g}: {number_words(value)}"))
    return chart


def _pieces(points: Points) -> list[list[tuple[float, float]]]:
    """Return the stretches of points that a line may join: broken by gaps, and where a run went back."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in points:
        if not math.isfinite(value) or (pieces[-1] and step < pieces[-1][-1][0]):
            pieces.append([])
        if math.isfinite(value):
            pieces[-1].append((step, value))
    return [piece for piece in pieces if len(piece) > 1]

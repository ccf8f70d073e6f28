"""The metrics of a run as curves over its steps: of epochs where a training told them, else of saves. Pure."""

from __future__ import annotations

from hpcckpt.reporting.story import Epoch, Save, Story

MAX_CURVES = 24
Points = list[tuple[float, float]]


def curves_of(story: Story) -> list[tuple[str, Points]]:
    """Return each metric's name and its values over steps; in a run of cycles one for each cycle. Pure."""
    found: dict[tuple[str, str], Points] = {}
    with_epochs = {epoch.part for epoch in story.epochs}
    told: list[Epoch | Save] = [*story.epochs, *(save for save in story.saves if save.part not in with_epochs)]
    for each in told:
        for name, value in each.metrics.items():
            found.setdefault((each.part, name), []).append((float(each.step), value))
    has_parts = len({part for part, _ in found}) > 1
    return [
        (f"{name} ({part})" if has_parts and part else name, points)
        for (part, name), points in list(found.items())[:MAX_CURVES]
    ]

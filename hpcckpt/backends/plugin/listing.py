"""Which plugins there are: those on the search path, and what is in them or wrong with them."""

from __future__ import annotations

from hpcckpt.backends.registry import BackendInfo
from hpcckpt.native import plugins


def known_plugins() -> tuple[BackendInfo, ...]:
    """Return the backends of all plugins that are loaded or on the search path, sorted. Independent.

    Files are read by a separate process, so a broken one harms nothing.
    """
    found = {
        name: BackendInfo(f"plugin:{name}", backend.origin, "", features=tuple(sorted(backend.features)))
        for name, backend in plugins.loaded().items()
    }
    files = {name: path for name, path in plugins.available().items() if name not in found}
    for name, file in zip(files, plugins.inspect(list(files.values())), strict=True):
        if file.problem:
            found[name] = BackendInfo(f"plugin:{name}", file.file, "", problem=file.problem)
        for inner, features in file.backends:
            hint = "" if inner == name else f"found only after hpcckpt.plugins.load({file.file!r})"
            if inner == name or inner not in {*files, *found}:
                found[inner] = BackendInfo(f"plugin:{inner}", file.file, "", features=features, problem=hint)
    rows = [found[name] for name in sorted(found)]
    return (*rows, *(BackendInfo("plugin", path, "", problem=why) for path, why in sorted(plugins.skipped().items())))

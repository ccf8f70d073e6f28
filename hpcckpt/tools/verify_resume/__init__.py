"""Verify resuming: run a training straight through, and again killed and resumed, and compare the results.

`verify` does it; `VerifySettings` are its options, `VerifyResult` its result.  It needs no MPI and no framework.  The
training only has to accept a run directory.
"""

from __future__ import annotations

from hpcckpt.tools.verify_resume.procedure import verify
from hpcckpt.tools.verify_resume.results import Compared, Kill, ProgramRun, VerifyResult, VerifySettings

__all__ = ["Compared", "Kill", "ProgramRun", "VerifyResult", "VerifySettings", "verify"]

"""Every module of cases, in order."""

import blind_live  # noqa: F401
import blind_workers  # noqa: F401
import own_cases  # noqa: F401
from cases import CASES as CASES

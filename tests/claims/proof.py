"""``@proves("claim-id")`` ties a test to the ``{claim}`` of the book that it shows."""

import pytest

proves = pytest.mark.proves

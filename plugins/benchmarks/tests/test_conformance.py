"""Everything that this plugin registers keeps the contract. The published sets are checked by their samples in
`test_published.py`: their other splits are on the hub.
"""

from __future__ import annotations

from ramet.testing import check_plugin
from ramet_benchmarks import PUBLISHED


def test_the_plugin_conforms() -> None:
    skip = {f"benchmarks.{name}": "its data is loaded from the hub" for name in PUBLISHED}
    checked = check_plugin("benchmarks", skip=skip | {"benchmarks.files": "test_files.py has files for it"})
    assert checked == ["benchmarks.arithmetic"]

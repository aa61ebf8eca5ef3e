"""A properties file of an earlier release is accepted and has the same defaults.

To record all settings again, run `python -m tests.unit.config.test_golden_configuration FILE`.
"""

import sys
from pathlib import Path

from coordinator.config.loading import load_config
from coordinator.config.properties import parse_properties
from coordinator.config.settings import SETTINGS

GOLDEN = Path(__file__).parents[2] / "golden"
FILE = GOLDEN / "configuration-1.properties"


def setting_defaults() -> dict[str, str]:
    """Return the default of each setting except `advertise`, which defaults to another setting."""
    return {setting.name: setting.default for setting in SETTINGS if setting.name != "advertise"}


def test_settings_of_an_earlier_release_keep_their_defaults() -> None:
    recorded = {each.name: each.value for each in parse_properties(FILE.read_text("utf-8"))}
    known = setting_defaults()
    assert {name: known.get(name) for name in recorded} == recorded


def test_configuration_file_of_an_earlier_release_is_accepted() -> None:
    # Use log=kafka, because a journal refuses the default replication factor.
    flags = {"--log": "kafka", "--bootstrap-servers": "localhost:9092"}
    assert load_config(flags, file=FILE).config == load_config(flags).config


if __name__ == "__main__":
    with (GOLDEN / sys.argv[1]).open("x", encoding="utf-8") as recorded_file:
        recorded_file.writelines(f"{name}={default}\n" for name, default in setting_defaults().items())

"""The settings: one table of names, defaults and bounds, and where their values come from.

A setting has one name in three spellings (Kafka's dotted name, an environment variable, a flag), and every
bound of the coordinator is one of them. Values come from flags, then the environment, then a `.properties`
file, then the defaults; the first that says something wins.
"""

from coordinator.config.fields import INT32_MAX, HostPort
from coordinator.config.loading import LoadedConfig, load_config, printable_value
from coordinator.config.reference import render_reference
from coordinator.config.settings import SETTINGS, Config, Setting

__all__ = [
    "INT32_MAX",
    "SETTINGS",
    "Config",
    "HostPort",
    "LoadedConfig",
    "Setting",
    "load_config",
    "printable_value",
    "render_reference",
]

"""The settings: a table of names, defaults and ranges, and the sources of their values.

A setting has one name in three spellings: Kafka's dotted name, an environment variable and a flag. Every
limit of the coordinator is a setting. Flags override the environment, which overrides a `.properties` file,
which overrides the defaults.
"""

from coordinator.config.fields import INT32_MAX, HostPort
from coordinator.config.loading import LoadedConfig, load_config, printable_value
from coordinator.config.reference import render_reference
from coordinator.config.settings import SETTINGS, Config, Setting

"""Test three coordinators for three brokers with a sequence of failures under load.

After each failure, all coordinators must return the same state as an independent reader of the topic, and no
acknowledgement may be lost. The test prints the measured effects at the end.
"""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.cluster import SETTINGS, ChaosCluster
from tests.chaos.disasters import DISASTERS
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import end_of_logs, replicated_rig

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.timeout(3600)
def test_coordinators_agree_with_topic_after_each_failure(
    newest_jars: KafkaJars, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with replicated_rig(newest_jars, tmp_path, SETTINGS) as rig:
        cluster = ChaosCluster(rig, tmp_path)

        async def main() -> None:
            async with cluster.run_under_load():
                for name, disaster in DISASTERS.items():
                    await cluster.run_disaster(name, disaster)
                await asyncio.to_thread(cluster.groups.finish, seconds=300)

        try:
            asyncio.run(main())
            cluster.groups.check()
        except BaseException:
            print(end_of_logs(rig))
            raise
        finally:
            with capsys.disabled():
                cluster.report(Console(width=120))
        for one in rig.coordinators:
            log = one.process.log.read_text()
            assert "Traceback" not in log, log[log.index("Traceback") - 2_000 :][:4_000]

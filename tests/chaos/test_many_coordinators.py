"""Three coordinators beside three brokers live through one disaster after the other, under load.

After each: all coordinators give the same answers, what they answer is what an independent reader finds in
the topic, and no acknowledgement is lost. What it cost is printed at the end.
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
def test_one_truth_through_all_disasters(
    newest_jars: KafkaJars, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with replicated_rig(newest_jars, tmp_path, SETTINGS) as rig:
        cluster = ChaosCluster(rig, tmp_path)

        async def main() -> None:
            async with cluster.under_load():
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

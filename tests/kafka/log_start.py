"""Move the log start offset of a user topic, as retention does."""

import asyncio

from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition


def delete_records(bootstrap: str, topic: str, *, before_offset: int) -> None:
    async def send_delete_records() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset)})
        finally:
            await admin.close()

    asyncio.run(send_delete_records())

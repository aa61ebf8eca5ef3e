"""Compute states from log records in Spark SQL, by Kafka's rules and without code of the recovery jobs.

The query is slow, and supports logs of a few thousand records without unknown tags. For each offset, the
query takes the greatest (delivery count, delivery state) among all batches after the last snapshot. Every
start offset of the same or a later record removes the offsets below it.
"""

from pyspark.sql import DataFrame, SparkSession

_NUMBER = "cast(conv(hex(substring({column}, {at}, {bytes})), 16, 10) as decimal(20, 0))"
# Two's complement: numbers from half of the value range on are negative.
_SIGNED = "cast(case when {n} >= {half} then {n} - {whole} else {n} end as bigint)"


def signed_sql(column: str, at: str, size: int) -> str:
    """Return SQL for a big-endian signed number in a binary column; the first byte is number 1."""
    number = _NUMBER.format(column=column, at=at, bytes=size)
    return _SIGNED.format(n=number, half=f"{1 << (8 * size - 1)}BD", whole=f"{1 << (8 * size)}BD")


def rebuild_with_sql(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Return key, start_offset, state_epoch, snapshot_epoch and (offset, count, state) of each offset."""
    records.createOrReplaceTempView("oracle_records")
    is_snapshot = "substring(key, 2, 1) = X'00'"
    count_at = f"(case when {is_snapshot} then 39 else 19 end)"
    decoded = f"""
        select state_partition, log_offset, substring(key, 3) as share_partition,
               {is_snapshot} as is_snapshot, value is null as is_tombstone, value,
               {signed_sql("value", "3", 4)} as snapshot_epoch,
               case when {is_snapshot} then {signed_sql("value", "7", 4)} else 0 end as state_epoch,
               {signed_sql("value", f"(case when {is_snapshot} then 15 else 11 end)", 8)} as start_offset,
               cast({_NUMBER.format(column="value", at=count_at, bytes=1)} as int) - 1 as batches,
               {count_at} + 1 as batches_at
        from oracle_records
    """
    spark.sql(decoded).createOrReplaceTempView("oracle_decoded")
    spark.sql("""
        select d.*, max(case when is_snapshot then log_offset end)
                      over (partition by share_partition) as reset_at
        from oracle_decoded d
    """).createOrReplaceTempView("oracle_reset")
    spark.sql("""
        select *,
               first(snapshot_epoch)
                 over (partition by share_partition order by log_offset) as first_epoch,
               first(state_epoch)
                 over (partition by share_partition order by log_offset) as first_state_epoch,
               last(case when is_snapshot or start_offset != -1 then start_offset end, true)
                 over (partition by share_partition order by log_offset) as start_then
        from oracle_reset
        where (reset_at is null or log_offset >= reset_at) and not is_tombstone
    """).createOrReplaceTempView("oracle_alive")
    return _greatest_batches(spark)


def _greatest_batches(spark: SparkSession) -> DataFrame:
    """Find the greatest batch of each offset among the remaining records."""
    spark.sql("""
        select *, max(case when start_then = -1 then null else start_then end)
                    over (partition by share_partition order by log_offset
                          rows between current row and unbounded following) as cut
        from oracle_alive
    """).createOrReplaceTempView("oracle_cut")
    batch = "batches_at + 20 * n"
    spark.sql(f"""
        select share_partition, cut, {signed_sql("value", batch, 8)} as first_offset,
               {signed_sql("value", f"({batch} + 8)", 8)} as last_offset,
               {signed_sql("value", f"({batch} + 16)", 1)} as delivery_state,
               {signed_sql("value", f"({batch} + 17)", 2)} as delivery_count
        from oracle_cut lateral view explode(sequence(0, batches - 1)) numbers as n where batches > 0
    """).createOrReplaceTempView("oracle_batches")
    spark.sql("""
        select share_partition, offset, max(struct(delivery_count, delivery_state)) as best
        from oracle_batches lateral view explode(sequence(first_offset, last_offset)) offsets as offset
        where first_offset <= last_offset and (cut is null or offset >= cut)
        group by share_partition, offset
    """).createOrReplaceTempView("oracle_offsets")
    return spark.sql("""
        select s.share_partition, s.start_offset, s.state_epoch, s.snapshot_epoch,
               sort_array(collect_list(case when o.offset is not null then
                 struct(o.offset, o.best.delivery_count, o.best.delivery_state) end)) as offsets
        from (select share_partition, coalesce(max_by(start_then, log_offset), -1) as start_offset,
                     max(first_state_epoch) as state_epoch, max(first_epoch) as snapshot_epoch
              from oracle_cut group by share_partition) s
        left join oracle_offsets o on s.share_partition = o.share_partition
        group by s.share_partition, s.start_offset, s.state_epoch, s.snapshot_epoch
    """)

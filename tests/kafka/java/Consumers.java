import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Run share consumers, each in its own thread, until they have received enough records or the time is over.
 *
 * <p>BOOTSTRAP TOPICS GROUPS CONSUMERS RECORDS SECONDS COMMIT TYPES MAX_POLL_RECORDS: topics and groups separated by
 * commas; consumers of each group; records of all consumers together; seconds after the first record. COMMIT is
 * "auto" (the client acknowledges what a poll returned with the next poll), "poll" (each record is acknowledged, with a
 * commit for each poll) or "record" (with a commit for each record). TYPES are the letters of the acknowledgements in
 * turn: A accept, R release, J reject. Prints the number of records, and the seconds from the first record to the last
 * commit.
 */
public final class Consumers {
    private static final Duration POLL = Duration.ofMillis(200);
    /** A consumer ends after this time without a record, in nanoseconds. */
    private static final long IDLE_NS = 60_000_000_000L;
    private static final Map<Character, AcknowledgeType> TYPES = Map.of(
        'A', AcknowledgeType.ACCEPT, 'R', AcknowledgeType.RELEASE, 'J', AcknowledgeType.REJECT);

    private final String[] arguments;
    private final long wanted;
    private final long limitNs;
    private final AtomicLong came = new AtomicLong();
    private final AtomicLong began = new AtomicLong();
    private final AtomicLong ended = new AtomicLong();

    private Consumers(String[] arguments) {
        this.arguments = arguments;
        wanted = Long.parseLong(arguments[4]);
        limitNs = (long) (Double.parseDouble(arguments[5]) * 1e9);
    }

    public static void main(String[] arguments) throws Exception {
        Consumers all = new Consumers(arguments);
        List<Thread> threads = new ArrayList<>();
        for (String group : arguments[2].split(",")) {
            for (int number = 0; number < Integer.parseInt(arguments[3]); number++) {
                threads.add(new Thread(() -> all.consume(group)));
            }
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(all.came + " " + (all.ended.get() - all.began.get()) / 1e9);
        // Halt without closing the consumers, because unacknowledged records would delay the close.
        Runtime.getRuntime().halt(0);
    }

    private void consume(String group) {
        String commit = arguments[6];
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings(group, commit), bytes, bytes);
        consumer.subscribe(List.of(arguments[1].split(",")));
        long lastRecord = System.nanoTime();
        int number = 0;
        while (!isOver() && System.nanoTime() - lastRecord < IDLE_NS) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            if (records.isEmpty()) {
                continue;
            }
            lastRecord = System.nanoTime();
            began.compareAndSet(0, lastRecord);
            if (commit.equals("auto")) {
                came.addAndGet(records.count());
                ended.set(System.nanoTime());
                continue;
            }
            for (ConsumerRecord<byte[], byte[]> record : records) {
                consumer.acknowledge(record, TYPES.get(arguments[7].charAt(number++ % arguments[7].length())));
                came.incrementAndGet();
                if (commit.equals("record")) {
                    consumer.commitSync();
                }
                if (isOver()) {
                    break;
                }
            }
            consumer.commitSync();
            ended.set(System.nanoTime());
        }
    }

    private boolean isOver() {
        long first = began.get();
        return came.get() >= wanted || first != 0 && System.nanoTime() - first > limitNs;
    }

    private Map<String, Object> settings(String group, String commit) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, arguments[8]);
        if (!commit.equals("auto")) {
            settings.put(ConsumerConfig.SHARE_ACKNOWLEDGEMENT_MODE_CONFIG, "explicit");
        }
        return settings;
    }
}

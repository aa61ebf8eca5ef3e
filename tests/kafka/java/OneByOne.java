import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A share consumer that acknowledges record by record, to see how fast that goes.
 *
 * <p>BOOTSTRAP GROUP TOPIC RECORDS poll|record: a commit for what each poll brought, or for each record. Prints the
 * records and the seconds between the first record and the last commit.
 */
public final class OneByOne {
    private static final Duration PATIENCE = Duration.ofSeconds(10);

    private OneByOne() {
    }

    public static void main(String[] arguments) {
        long wanted = Long.parseLong(arguments[3]);
        boolean each = arguments[4].equals("record");
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, arguments[1]);
        settings.put(ConsumerConfig.SHARE_ACKNOWLEDGEMENT_MODE_CONFIG, "explicit");
        long came = 0;
        long began = 0;
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(arguments[2]));
            long lastNews = System.nanoTime();
            while (came < wanted && System.nanoTime() - lastNews < PATIENCE.toNanos()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                lastNews = System.nanoTime();
                began = began == 0 ? lastNews : began;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    came++;
                    if (each) {
                        consumer.commitSync();
                    }
                    if (came == wanted) {
                        break;
                    }
                }
                if (!each) {
                    consumer.commitSync();
                }
            }
            System.out.println(came + " " + (System.nanoTime() - began) / 1e9);
            // What was polled and not asked for would be waited for.
            Runtime.getRuntime().halt(0);
        }
    }
}

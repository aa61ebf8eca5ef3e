import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** A share consumer with explicit acknowledgement of each record. Not thread-safe. */
final class Consumer {
    private final KafkaShareConsumer<String, String> consumer;
    /** The records of the last poll that are not acknowledged yet. */
    private List<ConsumerRecord<String, String>> polled = List.of();
    final String group;
    /** The client id, which identifies the member in the group's description. */
    final String name;

    Consumer(String bootstrap, JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        group = command.get("group").asText();
        name = command.get("consumer").asText();
        settings.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        settings.put(ConsumerConfig.CLIENT_ID_CONFIG, name);
        settings.put(ConsumerConfig.SHARE_ACKNOWLEDGEMENT_MODE_CONFIG, "explicit");
        command.get("settings").fields().forEachRemaining(
            setting -> settings.put(setting.getKey(), setting.getValue().asText()));
        consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(command.get("topic").asText()));
    }

    /** Return [topic, partition, offset, value, delivery count] for each record. */
    JsonNode poll(long timeoutMs) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        consumer.poll(Duration.ofMillis(timeoutMs)).forEach(records::add);
        polled = records;
        ArrayNode rows = Driver.array();
        for (ConsumerRecord<String, String> record : records) {
            rows.addArray().add(record.topic()).add(record.partition()).add(record.offset())
                .add(record.value()).add(record.deliveryCount().orElse((short) -1));
        }
        return rows;
    }

    /**
     * Acknowledge the records of the last poll, each with the type of the same index, and commit.
     * Return [topic, partition, null or failure] for each partition.
     */
    JsonNode settle(JsonNode types) {
        if (types.size() != polled.size()) {
            throw new IllegalArgumentException(types.size() + " types for " + polled.size() + " records");
        }
        for (int index = 0; index < polled.size(); index++) {
            consumer.acknowledge(polled.get(index), AcknowledgeType.valueOf(types.get(index).asText()));
        }
        polled = List.of();
        ArrayNode rows = Driver.array();
        Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
        results.forEach((partition, failure) -> {
            ArrayNode row = rows.addArray().add(partition.topic()).add(partition.partition());
            if (failure.isPresent()) {
                row.add(Driver.failure(failure.get()));
            } else {
                row.addNull();
            }
        });
        return rows;
    }

    void close() {
        consumer.close();
    }
}

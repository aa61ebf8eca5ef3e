import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringSerializer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;

/** Topics, group settings and produced records of one cluster. Used by one thread. */
final class Cluster {
    private final Admin admin;
    private final KafkaProducer<String, String> producer;

    Cluster(String bootstrap) {
        admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap));
        producer = new KafkaProducer<>(
            Map.of(
                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                // A share consumer gets whole batches, however few records it asks for: each record is one.
                ProducerConfig.BATCH_SIZE_CONFIG, 0
            ),
            new StringSerializer(),
            new StringSerializer()
        );
    }

    /** Create a topic with as many replicas as the brokers are set to; answers its id as Kafka writes it. */
    JsonNode createTopic(String topic, int partitions) throws Exception {
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        CreateTopicsResult result = admin.createTopics(List.of(wanted));
        return Driver.object().put("topic_id", result.topicId(topic).get().toString());
    }

    /** The names of all topics, internal ones too. */
    JsonNode topics() throws Exception {
        ArrayNode names = Driver.array();
        admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().forEach(names::add);
        return names;
    }

    JsonNode setGroupConfig(String group, JsonNode settings) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        settings.fields().forEachRemaining(setting -> changes.add(new AlterConfigOp(
            new ConfigEntry(setting.getKey(), setting.getValue().asText()), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        return Driver.object();
    }

    /** Produce records with the values first, first + 1, ... and wait for all; answers the offset of each. */
    JsonNode produce(JsonNode command) throws Exception {
        long first = command.get("first").asLong();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (long number = first; number < first + command.get("count").asLong(); number++) {
            sent.add(producer.send(new ProducerRecord<>(
                command.get("topic").asText(), command.get("partition").asInt(), null, Long.toString(number))));
        }
        producer.flush();
        ArrayNode offsets = Driver.array();
        for (Future<RecordMetadata> record : sent) {
            offsets.add(record.get().offset());
        }
        return offsets;
    }
}

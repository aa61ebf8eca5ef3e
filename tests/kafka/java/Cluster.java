import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringSerializer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/** Admin client and producer of one cluster. All methods except awaitMemberRemoved must be called by one thread. */
final class Cluster {
    /** Longer than a session, after which the broker removes a member whose leave request was lost. */
    private static final long LEAVE_WITHIN_NS = 90_000_000_000L;

    private final Admin admin;
    private final KafkaProducer<String, String> producer;

    Cluster(String bootstrap) {
        admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap));
        producer = new KafkaProducer<>(
            Map.of(
                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                // One record in each batch, because a share consumer receives whole batches.
                ProducerConfig.BATCH_SIZE_CONFIG, 0
            ),
            new StringSerializer(),
            new StringSerializer()
        );
    }

    /**
     * Wait until a client is not a member of a share group any more. Thread-safe.
     *
     * <p>KafkaShareConsumer.close() sends a leave request, but does not wait until the broker has processed it.
     */
    void awaitMemberRemoved(String group, String client) throws Exception {
        long deadline = System.nanoTime() + LEAVE_WITHIN_NS;
        while (isMember(group, client)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(client + " is still a member of " + group);
            }
            Thread.sleep(20);
        }
    }

    private boolean isMember(String group, String client) throws Exception {
        try {
            ShareGroupDescription described =
                admin.describeShareGroups(List.of(group)).describedGroups().get(group).get();
            return described.members().stream().anyMatch(member -> member.clientId().equals(client));
        } catch (ExecutionException failure) {
            if (failure.getCause() instanceof GroupIdNotFoundException) {
                return false;
            }
            throw failure;
        }
    }

    /** Create a topic with the brokers' default replication factor; return its id in Kafka's format. */
    JsonNode createTopic(String topic, int partitions) throws Exception {
        NewTopic wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty());
        String id = admin.createTopics(List.of(wanted)).topicId(topic).get().toString();
        // A broker learns of the change later than the controller.
        while (!topicExists(topic)) {
            Thread.sleep(20);
        }
        return Driver.object().put("topic_id", id);
    }

    private boolean topicExists(String topic) throws Exception {
        try {
            admin.describeTopics(List.of(topic)).allTopicNames().get();
            return true;
        } catch (ExecutionException failure) {
            if (failure.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw failure;
        }
    }

    /** Return the names of all topics, including internal topics. */
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
        // A broker learns of the change later than the controller.
        while (!configsAreSet(resource, changes)) {
            Thread.sleep(20);
        }
        return Driver.object();
    }

    private boolean configsAreSet(ConfigResource resource, List<AlterConfigOp> changes) throws Exception {
        Config known = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        return changes.stream().map(AlterConfigOp::configEntry).allMatch(wanted -> {
            ConfigEntry found = known.get(wanted.name());
            return found != null && wanted.value().equals(found.value());
        });
    }

    /** Produce records with the values first, first + 1, ... and wait for all of them; return their offsets. */
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

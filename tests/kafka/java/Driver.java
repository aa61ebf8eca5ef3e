import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Kafka's own clients for tests that are not written in Java.
 *
 * <p>A command is one line of JSON on standard input, its answer one line on standard output with the same "id".
 * Each consumer has a thread of its own, as Kafka demands, so that one that waits holds up no other; everything
 * else runs on one more thread, in order. The program ends when its input does.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Commands that name no consumer. */
    private static final String CLUSTER = "";

    private final PrintStream answers;
    private final Cluster cluster;
    private final String bootstrap;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Map<String, Consumer> consumers = new HashMap<>();

    private Driver(PrintStream answers, String bootstrap) {
        this.answers = answers;
        this.bootstrap = bootstrap;
        this.cluster = new Cluster(bootstrap);
    }

    public static void main(String[] arguments) throws Exception {
        // Standard output carries answers and nothing else; what Kafka logs goes to standard error.
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver(answers, arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            driver.submit(JSON.readTree(line));
        }
        // Whoever closed the input is gone: nothing is left to say goodbye for.
        Runtime.getRuntime().halt(0);
    }

    private void submit(JsonNode command) {
        String thread = command.path("consumer").asText(CLUSTER);
        threads.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor())
            .execute(() -> answer(command));
    }

    private void answer(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", command.get("id"));
        try {
            answer.set("result", run(command));
        } catch (Exception | Error failure) {
            answer.set("failure", failure(failure));
        }
        synchronized (answers) {
            answers.println(answer);
        }
    }

    /** Describe an exception: an ExecutionException is only a wrapper of the one that says something. */
    static ObjectNode failure(Throwable failure) {
        Throwable said = failure instanceof java.util.concurrent.ExecutionException ? failure.getCause() : failure;
        return JSON.createObjectNode().put("class", said.getClass().getSimpleName()).put("message", said.getMessage());
    }

    static ArrayNode array() {
        return JSON.createArrayNode();
    }

    static ObjectNode object() {
        return JSON.createObjectNode();
    }

    private JsonNode run(JsonNode command) throws Exception {
        String operation = command.get("operation").asText();
        switch (operation) {
            case "create_topic":
                return cluster.createTopic(command.get("topic").asText(), command.get("partitions").asInt());
            case "topics":
                return cluster.topics();
            case "set_group_config":
                return cluster.setGroupConfig(command.get("group").asText(), command.get("settings"));
            case "produce":
                return cluster.produce(command);
            case "open":
                return open(command);
            default:
                return runOn(consumer(command), operation, command);
        }
    }

    private JsonNode runOn(Consumer consumer, String operation, JsonNode command) throws Exception {
        switch (operation) {
            case "poll":
                return consumer.poll(command.get("timeout_ms").asLong());
            case "settle":
                return consumer.settle(command.get("types"));
            case "close":
                consumer.close();
                cluster.awaitLeft(consumer.group, consumer.name);
                return object();
            default:
                throw new IllegalArgumentException("no such operation: " + operation);
        }
    }

    private JsonNode open(JsonNode command) {
        Consumer consumer = new Consumer(bootstrap, command);
        synchronized (consumers) {
            consumers.put(command.get("consumer").asText(), consumer);
        }
        return object();
    }

    private Consumer consumer(JsonNode command) {
        String name = command.path("consumer").asText(CLUSTER);
        synchronized (consumers) {
            Consumer consumer = consumers.get(name);
            if (consumer == null) {
                throw new IllegalArgumentException("no such consumer: " + name);
            }
            return consumer;
        }
    }
}

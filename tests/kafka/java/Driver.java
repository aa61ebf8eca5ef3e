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
 * Run commands of a test with Kafka's own clients.
 *
 * <p>A command is one line of JSON on standard input. Its answer is one line on standard output with the same "id".
 * Each consumer has its own thread, because Kafka's consumers are not thread-safe and a poll blocks. All other
 * commands run in order on one further thread. The program ends at the end of its standard input.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** The name of the thread for commands without a consumer. */
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
        // Only answers are written to standard output. Kafka's log is written to standard error.
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Driver driver = new Driver(answers, arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            driver.submit(JSON.readTree(line));
        }
        // The test has ended, so halt without closing the clients.
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

    /** Describe an exception, or the cause of an ExecutionException. */
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
                cluster.awaitMemberRemoved(consumer.group, consumer.name);
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

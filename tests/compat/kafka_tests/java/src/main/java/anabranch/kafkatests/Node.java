package anabranch.kafkatests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;

/**
 * One node, which stands for all brokers of a test's cluster.
 *
 * The runner of the tests listens on a port of loopback. A connection to it is a node: each line asks for something and is
 * answered with a line, and the node with its data is gone as the connection ends.
 */
public final class Node implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, String> properties;
    private Socket connection;
    private BufferedReader answers;
    private Admin admin;
    private final Set<Integer> brokers = new HashSet<>();
    private int first = -1;
    private int port;

    /** Properties are those of the brokers that the test asks for. */
    public Node(Map<String, String> properties) {
        this.properties = properties;
    }

    /** Start a broker of the cluster: the first is the node, others are names for it. */
    public synchronized void start(int broker) {
        if (first == -1) {
            first = broker;
        }
        if (brokers.add(broker) && broker == first) {
            port = ask(Map.of("do", "start", "properties", properties)).get("port").asInt();
        }
    }

    /** Stop a broker, the node in order if it is the first; the node's data stays. */
    public synchronized void stop(int broker) {
        if (brokers.remove(broker) && broker == first) {
            ask(Map.of("do", "stop"));
        }
    }

    public synchronized boolean runs(int broker) {
        return brokers.contains(broker);
    }

    /** Port of the Kafka listener, the same after a restart. */
    public synchronized int port() {
        return port;
    }

    public String bootstrap() {
        return "localhost:" + port();
    }

    /** Return a client for what a broker's objects would say. */
    public synchronized Admin admin() {
        if (admin == null) {
            admin = Admin.create(Map.of("bootstrap.servers", bootstrap()));
        }
        return admin;
    }

    @Override
    public synchronized void close() {
        brokers.clear();
        if (admin != null) {
            admin.close();
            admin = null;
        }
        if (connection != null) {
            try {
                connection.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            connection = null;
        }
    }

    private JsonNode ask(Map<String, ?> request) {
        try {
            if (connection == null) {
                connection = new Socket(InetAddress.getLoopbackAddress(), Integer.getInteger("anabranch.runner"));
                answers = new BufferedReader(new InputStreamReader(connection.getInputStream(), StandardCharsets.UTF_8));
            }
            connection.getOutputStream().write((JSON.writeValueAsString(request) + "\n").getBytes(StandardCharsets.UTF_8));
            JsonNode answer = JSON.readTree(answers.readLine());
            if (answer.has("error")) {
                throw new IllegalStateException(answer.get("error").asText());
            }
            return answer;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Writes and reads as fast as Pravega's Java client does, and says how long it took. */
public final class PravegaLoad {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serializer<byte[]> BYTES = new ByteArraySerializer();
    private static final int PATIENCE_SECONDS = 60;

    private PravegaLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = input.readLine()) != null) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(run(JSON.readTree(line))));
            } catch (Exception error) {
                answer.put("error", error.getClass().getSimpleName());
                answer.put("message", error.toString());
                error.printStackTrace();
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
        System.exit(0);
    }

    private static double[] run(JsonNode command) throws Exception {
        ClientConfig config = ClientConfig.builder().controllerURI(URI.create(command.get("controller").asText())).build();
        String scope = command.get("scope").asText();
        String stream = command.get("stream").asText();
        int count = command.get("count").asInt();
        try (EventStreamClientFactory factory = EventStreamClientFactory.withScope(scope, config)) {
            switch (command.get("op").asText()) {
                case "write":
                    return write(factory, stream, command.get("size").asInt(), count, command.get("window").asInt());
                case "ack":
                    return acks(factory, stream, command.get("size").asInt(), count);
                case "read":
                    return read(factory, config, scope, stream, command.get("group").asText(), count);
                default:
                    throw new IllegalArgumentException(command.get("op").asText());
            }
        }
    }

    private static byte[] event(int size) {
        byte[] data = new byte[size];
        new Random(size).nextBytes(data);
        return data;
    }

    private static double seconds(long began) {
        return (System.nanoTime() - began) / 1e9;
    }

    /** Seconds that it took until all events were acknowledged, at most {@code window} of them on their way. */
    private static double[] write(EventStreamClientFactory factory, String stream, int size, int count, int window)
            throws Exception {
        byte[] data = event(size);
        Queue<CompletableFuture<Void>> pending = new ArrayDeque<>();
        try (EventStreamWriter<byte[]> writer = writer(factory, stream)) {
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                if (pending.size() == window) {
                    pending.remove().get(PATIENCE_SECONDS, TimeUnit.SECONDS);
                }
                pending.add(writer.writeEvent(Integer.toString(number), data));
            }
            while (!pending.isEmpty()) {
                pending.remove().get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            }
            return new double[] {seconds(began)};
        }
    }

    /** Seconds until the acknowledgement of each of the events, which are written one after the other. */
    private static double[] acks(EventStreamClientFactory factory, String stream, int size, int count) throws Exception {
        byte[] data = event(size);
        double[] found = new double[count];
        try (EventStreamWriter<byte[]> writer = writer(factory, stream)) {
            for (int number = 0; number < count; number++) {
                long began = System.nanoTime();
                writer.writeEvent("key", data).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
                found[number] = seconds(began);
            }
        }
        return found;
    }

    private static EventStreamWriter<byte[]> writer(EventStreamClientFactory factory, String stream) {
        return factory.createEventWriter(stream, BYTES, EventWriterConfig.builder().build());
    }

    /** Seconds from the first event, which is not counted, to the last one, that a new reader group's only reader takes. */
    private static double[] read(EventStreamClientFactory factory, ClientConfig config, String scope, String stream,
            String group, int count) {
        try (ReaderGroupManager manager = ReaderGroupManager.withScope(scope, config)) {
            manager.createReaderGroup(group, ReaderGroupConfig.builder().stream(Stream.of(scope, stream))
                    .disableAutomaticCheckpoints().build());
            double lasted;
            try (EventStreamReader<byte[]> reader = factory.createReader("reader", group, BYTES, ReaderConfig.builder().build())) {
                long patience = System.nanoTime();
                long began = 0;
                int found = 0;
                while (found < count) {
                    if (reader.readNextEvent(1000).getEvent() == null) {
                        if (seconds(patience) > PATIENCE_SECONDS) {
                            throw new IllegalStateException(found + " of " + count + " events were read");
                        }
                        continue;
                    }
                    if (found++ == 0) {
                        began = System.nanoTime();
                    }
                }
                lasted = seconds(began);
            }
            manager.deleteReaderGroup(group);
            return new double[] {lasted};
        }
    }
}

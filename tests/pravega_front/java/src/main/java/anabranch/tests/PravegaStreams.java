package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.ByteArraySerializer;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** What is done with whole streams, their policies and stream cuts, and how a client says who it is. */
final class PravegaStreams {
    private static final Map<String, StreamCut> CUTS = new TreeMap<>();

    private PravegaStreams() {
    }

    /** With "user" and "password" the client says who it is, with "trust" it takes the certificates that this file signed. */
    static ClientConfig config(JsonNode command) {
        ClientConfig.ClientConfigBuilder made = ClientConfig.builder()
                .controllerURI(URI.create(command.get("controller").asText()));
        if (command.has("user")) {
            made.credentials(new DefaultCredentials(command.get("password").asText(), command.get("user").asText()));
        }
        if (command.has("trust")) {
            made.trustStore(command.get("trust").asText()).validateHostName(true);
        }
        return made.build();
    }

    static StreamConfiguration configuration(JsonNode command) {
        StreamConfiguration.StreamConfigurationBuilder made = StreamConfiguration.builder();
        int segments = command.path("segments").asInt(1);
        int rate = command.path("rate").asInt();
        switch (command.path("by").asText()) {
            case "events":
                made.scalingPolicy(ScalingPolicy.byEventRate(rate, 2, segments));
                break;
            case "bytes":
                made.scalingPolicy(ScalingPolicy.byDataRate(rate, 2, segments));
                break;
            default:
                made.scalingPolicy(ScalingPolicy.fixed(segments));
        }
        if (command.has("keep_ms")) {
            made.retentionPolicy(RetentionPolicy.byTime(Duration.ofMillis(command.get("keep_ms").asLong())));
        } else if (command.has("keep_bytes")) {
            made.retentionPolicy(RetentionPolicy.bySizeBytes(command.get("keep_bytes").asLong()));
        }
        return made.build();
    }

    static Object run(JsonNode command, ClientConfig config, Map<String, ReaderGroup> groups,
            Map<String, EventStreamWriter<byte[]>> writers, Map<String, EventStreamReader<byte[]>> readers,
            ScheduledExecutorService executor) throws Exception {
        String scope = command.get("scope").asText();
        String name = command.path("name").asText();
        Stream stream = Stream.of(scope, command.path("stream").asText("none"));
        switch (command.get("op").asText()) {
            case "update":
                try (StreamManager manager = StreamManager.create(config)) {
                    return manager.updateStream(scope, stream.getStreamName(), configuration(command));
                }
            case "tail":
                try (StreamManager manager = StreamManager.create(config)) {
                    return keep(name, info(manager, stream).getTailStreamCut());
                }
            case "head":
                try (StreamManager manager = StreamManager.create(config)) {
                    return keep(name, info(manager, stream).getHeadStreamCut());
                }
            case "tail_of":
                return keep(name, cut(name));
            case "truncate_at":
                try (StreamManager manager = StreamManager.create(config)) {
                    return manager.truncateStream(scope, stream.getStreamName(), cut(name));
                }
            case "group_between":
                ReaderGroupManager manager = ReaderGroupManager.withScope(scope, config);  // which its groups need
                boolean made = manager.createReaderGroup(name, ReaderGroupConfig.builder()
                        .stream(stream, cut(command.path("from").asText()), cut(command.path("to").asText()))
                        .groupRefreshTimeMillis(500).automaticCheckpointIntervalMillis(1000).build());
                groups.put(name, manager.getReaderGroup(name));
                return made;
            case "batch_between":
                return batch(scope, stream, config, command);
            case "generate_cut":
                return generate(groups.get(name), readers.get(command.get("reader").asText()), command, stream, executor);
            case "write_list":
                return writeList(writers.get(name), command);
            default:
                throw new IllegalArgumentException(command.get("op").asText());
        }
    }

    private static StreamInfo info(StreamManager manager, Stream stream) throws Exception {
        return manager.fetchStreamInfo(stream.getScope(), stream.getStreamName()).get(60, TimeUnit.SECONDS);
    }

    /** Positions by the ids of segments; the cut goes through its text, as applications keep it. */
    private static Object keep(String name, StreamCut cut) {
        CUTS.put(name, StreamCut.from(cut.asText()));
        Map<String, Long> found = new TreeMap<>();
        cut.asImpl().getPositions().forEach((segment, offset) -> found.put(Long.toString(segment.getSegmentId()), offset));
        return found;
    }

    private static StreamCut cut(String name) {
        return name.isEmpty() ? StreamCut.UNBOUNDED : CUTS.get(name);
    }

    private static Object batch(String scope, Stream stream, ClientConfig config, JsonNode command) {
        List<String> found = new ArrayList<>();
        try (BatchClientFactory factory = BatchClientFactory.withScope(scope, config)) {
            factory.getSegments(stream, cut(command.path("from").asText()), cut(command.path("to").asText())).getIterator()
                    .forEachRemaining(range -> factory.readSegment(range, new ByteArraySerializer())
                            .forEachRemaining(event -> found.add(Base64.getEncoder().encodeToString(event))));
        }
        return found;
    }

    /** Where a group's readers are; they have to go on reading for that, and find nothing. */
    private static Object generate(ReaderGroup group, EventStreamReader<byte[]> reader, JsonNode command, Stream stream,
            ScheduledExecutorService executor) throws Exception {
        CompletableFuture<Map<Stream, StreamCut>> made = group.generateStreamCuts(executor);
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!made.isDone() && System.nanoTime() < end) {
            reader.readNextEvent(200);
        }
        return keep(command.get("cut").asText(), made.get(1, TimeUnit.SECONDS).get(stream));
    }

    private static Object writeList(EventStreamWriter<byte[]> writer, JsonNode command) throws Exception {
        List<byte[]> events = new ArrayList<>();
        for (JsonNode event : command.get("events")) {
            events.add(PravegaDriver.data(event));
        }
        writer.writeEvents("key", events).get(60, TimeUnit.SECONDS);
        return events.size();
    }
}

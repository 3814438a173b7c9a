package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pravega.client.BatchClientFactory;
import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.KeyValueTableIterator;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.util.AsyncIterator;
import io.pravega.shared.watermarks.SegmentWithRange;
import io.pravega.shared.watermarks.Watermark;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Does with Pravega's Java client what it is told: a JSON object on a line, answered with one. */
public final class PravegaDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serializer<byte[]> BYTES = new ByteArraySerializer();
    private static final ScheduledExecutorService EXECUTOR = Executors.newScheduledThreadPool(2);

    /** Writers and readers that live from one command to another, by their names. */
    private static final Map<String, EventStreamWriter<byte[]>> WRITERS = new TreeMap<>();
    private static final Map<String, EventStreamReader<byte[]>> READERS = new TreeMap<>();
    private static final Map<String, ReaderGroup> GROUPS = new TreeMap<>();
    private static final Map<String, ReaderGroupManager> MANAGERS = new TreeMap<>();
    private static final Map<String, Object> POINTS = new TreeMap<>();
    private static final Map<String, EventStreamClientFactory> FACTORIES = new TreeMap<>();

    private PravegaDriver() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = input.readLine()) != null) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(run(JSON.readTree(line))));
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null && cause.getCause() != cause) {
                    cause = cause.getCause();
                }
                answer.put("error", error.getClass().getSimpleName());
                answer.put("message", error + " / " + cause);
                error.printStackTrace();
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
        System.exit(0);
    }

    private static Object run(JsonNode command) throws Exception {
        ClientConfig config = PravegaStreams.config(command);
        String scope = command.get("scope").asText();
        String stream = command.path("stream").asText();
        String name = command.path("name").asText();
        switch (command.get("op").asText()) {
            case "create":
                try (StreamManager manager = StreamManager.create(config)) {
                    manager.createScope(scope);
                    return manager.createStream(scope, stream, PravegaStreams.configuration(command));
                }
            case "seal":
                try (StreamManager manager = StreamManager.create(config)) {
                    return manager.sealStream(scope, stream);
                }
            case "delete":
                try (StreamManager manager = StreamManager.create(config)) {
                    return manager.deleteStream(scope, stream);
                }
            case "list":
                try (StreamManager manager = StreamManager.create(config)) {
                    List<String> found = new ArrayList<>();
                    manager.listStreams(scope).forEachRemaining(one -> found.add(one.getStreamName()));
                    return found;
                }
            case "delete_scope":
                try (StreamManager manager = StreamManager.create(config)) {
                    return manager.deleteScopeRecursive(scope);
                }
            case "tables":
                return tables(scope, name, config, command);
            case "writer":
                WRITERS.put(name, factory(scope, config).createEventWriter(stream, BYTES, EventWriterConfig.builder()
                        .enableLargeEvents(command.path("large").asBoolean(false)).build()));
                return null;
            case "write":
                return write(WRITERS.get(name), command);
            case "note_time":
                WRITERS.get(name).noteTime(command.get("time").asLong());
                return null;
            case "window":
                return window(READERS.get(command.get("reader").asText()), scope, stream, command.get("lower").asLong());
            case "watermark":
                return watermark(command);
            case "close_writer":
                WRITERS.remove(name).close();
                return null;
            case "group":
                return group(scope, stream, name, config);
            case "reader":
                READERS.put(command.get("reader").asText(), factory(scope, config).createReader(
                        command.get("reader").asText(), name, BYTES, ReaderConfig.builder().build()));
                return null;
            case "read":
                return read(READERS.get(command.get("reader").asText()), command);
            case "close_reader":
                READERS.remove(command.get("reader").asText()).close();
                return null;
            case "checkpoint":
                return checkpoint(GROUPS.get(name), READERS.get(command.get("reader").asText()), command.get("point").asText());
            case "reset":
                GROUPS.get(name).resetReaderGroup(ReaderGroupConfig.builder().disableAutomaticCheckpoints()
                        .startFromCheckpoint((Checkpoint) POINTS.get(command.get("point").asText())).build());
                return null;
            case "truncate":
                try (StreamManager manager = StreamManager.create(config)) {
                    Checkpoint point = (Checkpoint) POINTS.get(command.get("point").asText());
                    StreamCut cut = point.asImpl().getPositions().get(Stream.of(scope, stream));
                    return manager.truncateStream(scope, stream, cut);
                }
            case "delete_group":
                try (ReaderGroupManager manager = ReaderGroupManager.withScope(scope, config)) {
                    GROUPS.remove(name).close();
                    manager.deleteReaderGroup(name);
                    return null;
                }
            case "batch":
                return batch(scope, stream, config);
            case "transact":
                return transact(scope, stream, config, command);
            case "write_bytes":
                return writeBytes(scope, stream, config, command);
            case "read_bytes":
                return readBytes(scope, stream, config);
            case "bytes":
                return bytes(scope, stream, config, command);
            case "revisions":
                return revisions(scope, stream, config, command);
            case "scale":
                return scale(scope, stream, config, command);
            case "sample":
                try (PravegaSamples samples = new PravegaSamples(scope, config, EXECUTOR)) {
                    return samples.run(name);
                }
            default:
                return PravegaStreams.run(command, config, GROUPS, WRITERS, READERS, EXECUTOR);
        }
    }

    private static EventStreamClientFactory factory(String scope, ClientConfig config) {
        return FACTORIES.computeIfAbsent(scope + config.getControllerURI(),
                one -> EventStreamClientFactory.withScope(scope, config));
    }

    private static byte[] decoded(JsonNode text) {
        return Base64.getDecoder().decode(text.asText());
    }

    /** An event's data, which may be told by its size: bytes that count from 0 to 250, again and again. */
    static byte[] data(JsonNode told) {
        if (!told.isInt()) {
            return decoded(told);
        }
        byte[] data = new byte[told.asInt()];
        for (int at = 0; at < data.length; at++) {
            data[at] = (byte) (at % 251);
        }
        return data;
    }

    private static String digest(byte[] data) throws Exception {
        StringBuilder text = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(data)) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }

    private static String encoded(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }

    private static Object write(EventStreamWriter<byte[]> writer, JsonNode command) throws Exception {
        List<CompletableFuture<Void>> written = new ArrayList<>();
        for (JsonNode event : command.get("events")) {
            written.add(writer.writeEvent(event.get(0).asText(), data(event.get(1))));
        }
        writer.flush();
        for (CompletableFuture<Void> one : written) {
            one.get(60, TimeUnit.SECONDS);
        }
        return written.size();
    }

    private static Object group(String scope, String stream, String name, ClientConfig config) {
        ReaderGroupManager manager = MANAGERS.computeIfAbsent(scope + config.getControllerURI(),
                one -> ReaderGroupManager.withScope(scope, config));
        boolean made = manager.createReaderGroup(name, ReaderGroupConfig.builder()
                .stream(Stream.of(scope, stream)).groupRefreshTimeMillis(500).automaticCheckpointIntervalMillis(1000).build());
        GROUPS.put(name, manager.getReaderGroup(name));
        return made;
    }

    /** The events' data, or digests of it, and with "window" the last time window that the reader told of. */
    private static Object read(EventStreamReader<byte[]> reader, JsonNode command) throws Exception {
        int count = command.get("count").asInt();
        boolean digests = command.path("digests").asBoolean(false);
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(command.path("seconds").asInt(60));
        while (found.size() < count && System.nanoTime() < end) {
            EventRead<byte[]> event = reader.readNextEvent(1000);
            if (event.getEvent() != null) {
                found.add(digests ? digest(event.getEvent()) : encoded(event.getEvent()));
            }
        }
        return found;
    }

    /** The bounds of time that a reader is within, which it learns as it reads on. */
    private static Object window(EventStreamReader<byte[]> reader, String scope, String stream, long wanted) {
        TimeWindow window = null;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (System.nanoTime() < end) {
            reader.readNextEvent(100);
            window = reader.getCurrentTimeWindow(Stream.of(scope, stream));
            if (window.getLowerTimeBound() != null && window.getLowerTimeBound() >= wanted) {
                break;
            }
        }
        List<Long> bounds = new ArrayList<>();
        bounds.add(window.getLowerTimeBound());
        bounds.add(window.getUpperTimeBound());
        return bounds;
    }

    /** What the controller of Pravega would write into a stream of watermarks. */
    private static Object watermark(JsonNode command) throws Exception {
        Map<SegmentWithRange, Long> cut = new HashMap<>();
        for (JsonNode one : command.get("cut")) {
            cut.put(SegmentWithRange.builder().segmentId(one.get(0).asLong()).rangeLow(one.get(1).asDouble())
                    .rangeHigh(one.get(2).asDouble()).build(), one.get(3).asLong());
        }
        ByteBuffer made = Watermark.builder().lowerTimeBound(command.get("lower").asLong())
                .upperTimeBound(command.get("upper").asLong()).streamCut(cut).build().toByteBuf();
        byte[] data = new byte[made.remaining()];
        made.get(data);
        return encoded(data);
    }

    private static Object checkpoint(ReaderGroup group, EventStreamReader<byte[]> reader, String name) throws Exception {
        CompletableFuture<Checkpoint> made = group.initiateCheckpoint(name, EXECUTOR);
        int seen = 0;
        while (!made.isDone()) {
            EventRead<byte[]> event = reader.readNextEvent(200);
            if (event.getEvent() != null) {
                seen++;
            }
        }
        POINTS.put(name, made.get());
        return seen;
    }

    private static Object batch(String scope, String stream, ClientConfig config) {
        List<String> found = new ArrayList<>();
        try (BatchClientFactory factory = BatchClientFactory.withScope(scope, config)) {
            factory.getSegments(Stream.of(scope, stream), StreamCut.UNBOUNDED, StreamCut.UNBOUNDED).getIterator()
                    .forEachRemaining(range -> factory.readSegment(range, BYTES)
                            .forEachRemaining(event -> found.add(encoded(event))));
        }
        return found;
    }

    private static Object transact(String scope, String stream, ClientConfig config, JsonNode command) throws Exception {
        List<String> states = new ArrayList<>();
        try (TransactionalEventStreamWriter<byte[]> writer = factory(scope, config).createTransactionalEventWriter(
                stream, BYTES, EventWriterConfig.builder().build())) {
            for (JsonNode round : command.get("rounds")) {
                Transaction<byte[]> transaction = writer.beginTxn();
                for (JsonNode event : round.get(1)) {
                    transaction.writeEvent(event.get(0).asText(), data(event.get(1)));
                }
                transaction.flush();
                if (round.has(2)) { // the stream is scaled, and the transaction goes on
                    scale(scope, stream, config, round.get(2));
                    for (JsonNode event : round.get(2).get("events")) {
                        transaction.writeEvent(event.get(0).asText(), data(event.get(1)));
                    }
                    transaction.flush();
                }
                if (round.get(0).asBoolean()) {
                    transaction.commit();
                } else {
                    transaction.abort();
                }
                Transaction.Status status = transaction.checkStatus();
                for (int again = 0; again < 300 && (status == Transaction.Status.COMMITTING || status == Transaction.Status.ABORTING); again++) {
                    Thread.sleep(50);
                    status = transaction.checkStatus();
                }
                states.add(status.name());
            }
        }
        return states;
    }

    /** Each piece appended by itself. */
    private static Object writeBytes(String scope, String stream, ClientConfig config, JsonNode command) throws Exception {
        try (ByteStreamClientFactory factory = ByteStreamClientFactory.withScope(scope, config);
                ByteStreamWriter writer = factory.createByteStreamWriter(stream)) {
            for (JsonNode piece : command.get("pieces")) {
                writer.write(decoded(piece));
                writer.flush();
            }
            return null;
        }
    }

    /** What there is, from where it begins. */
    private static Object readBytes(String scope, String stream, ClientConfig config) throws Exception {
        try (ByteStreamClientFactory factory = ByteStreamClientFactory.withScope(scope, config);
                ByteStreamReader reader = factory.createByteStreamReader(stream)) {
            long head = reader.fetchHeadOffset();
            reader.seekToOffset(head);
            byte[] found = new byte[(int) (reader.fetchTailOffset() - head)];
            int at = 0;
            while (at < found.length) {
                at += reader.read(found, at, found.length - at);
            }
            return encoded(found);
        }
    }

    private static Object bytes(String scope, String stream, ClientConfig config, JsonNode command) throws Exception {
        byte[] data = decoded(command.get("data"));
        try (ByteStreamClientFactory factory = ByteStreamClientFactory.withScope(scope, config);
                ByteStreamWriter writer = factory.createByteStreamWriter(stream)) {
            writer.write(data);
            writer.flush();
            byte[] found = new byte[data.length];
            try (ByteStreamReader reader = factory.createByteStreamReader(stream)) {
                int at = 0;
                while (at < found.length) {
                    at += reader.read(found, at, found.length - at);
                }
                writer.truncateDataBefore(command.get("truncate").asLong());
                long head = reader.fetchHeadOffset();
                writer.closeAndSeal();
                reader.seekToOffset(found.length);
                return List.of(encoded(found), head, reader.read());
            }
        }
    }

    private static Object revisions(String scope, String stream, ClientConfig config, JsonNode command) {
        try (SynchronizerClientFactory factory = SynchronizerClientFactory.withScope(scope, config);
                RevisionedStreamClient<byte[]> client = factory.createRevisionedStreamClient(stream, BYTES,
                        SynchronizerConfig.builder().build())) {
            for (JsonNode value : command.get("values")) {
                client.writeUnconditionally(decoded(value));
            }
            Revision latest = client.fetchLatestRevision();
            Revision written = client.writeConditionally(latest, "conditional".getBytes());
            Revision refused = client.writeConditionally(latest, "refused".getBytes());
            boolean marked = client.compareAndSetMark(null, written);
            boolean again = client.compareAndSetMark(null, latest);
            List<String> found = new ArrayList<>();
            Iterator<Map.Entry<Revision, byte[]>> all = client.readFrom(client.fetchOldestRevision());
            all.forEachRemaining(one -> found.add(encoded(one.getValue())));
            boolean right = written.equals(client.getMark());
            client.truncateToRevision(latest);
            List<String> left = new ArrayList<>();
            client.readFrom(client.fetchOldestRevision()).forEachRemaining(one -> left.add(encoded(one.getValue())));
            return List.of(found, written != null && refused == null, marked && !again && right, left);
        }
    }

    private static ByteBuffer buffer(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(ByteBuffer data) {
        return StandardCharsets.UTF_8.decode(data.duplicate()).toString();
    }

    /** The name of what a modification fails with; "none" if it does not. */
    private static String failure(CompletableFuture<?> modified) throws Exception {
        try {
            modified.get(60, TimeUnit.SECONDS);
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    private static List<String> listed(KeyValueTableIterator iterator) throws Exception {
        List<String> found = new ArrayList<>();
        AsyncIterator<IteratorItem<TableEntry>> pages = iterator.entries();
        while (true) {
            IteratorItem<TableEntry> page = pages.getNext().get(60, TimeUnit.SECONDS);
            if (page == null) {
                return found;
            }
            page.getItems().forEach(one -> found.add(text(one.getKey().getPrimaryKey()) + text(one.getKey().getSecondaryKey())));
        }
    }

    /** Everything that a key-value table offers, once; keys have 4 and 2 bytes. */
    private static Object tables(String scope, String name, ClientConfig config, JsonNode command) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        int count = command.get("count").asInt();
        try (KeyValueTableManager manager = KeyValueTableManager.create(config)) {
            KeyValueTableConfiguration shape = KeyValueTableConfiguration.builder()
                    .partitionCount(command.get("partitions").asInt()).primaryKeyLength(4).secondaryKeyLength(2).build();
            found.put("made", manager.createKeyValueTable(scope, name, shape));
            found.put("again", manager.createKeyValueTable(scope, name, shape));
            List<String> names = new ArrayList<>();
            manager.listKeyValueTables(scope).forEachRemaining(one -> names.add(one.getKeyValueTableName()));
            found.put("names", names);
            try (KeyValueTableFactory factory = KeyValueTableFactory.withScope(scope, config);
                    KeyValueTable table = factory.forKeyValueTable(name, KeyValueTableClientConfiguration.builder().build())) {
                for (int number = 0; number < count; number++) {
                    List<TableModification> both = new ArrayList<>();
                    for (String second : List.of("aa", "bb")) {
                        both.add(new Insert(new TableKey(buffer(String.format("%04d", number)), buffer(second)), buffer("value " + number)));
                    }
                    table.update(both).get(60, TimeUnit.SECONDS);
                }
                TableKey key = new TableKey(buffer("0001"), buffer("aa"));
                found.put("inserted again", failure(table.update(new Insert(key, buffer("no")))));
                Version first = table.get(key).get().getVersion();
                Version second = table.update(new Put(key, buffer("new"), first)).get();
                found.put("old version", failure(table.update(new Put(key, buffer("no"), first))));
                found.put("value", text(table.get(key).get().getValue()));
                table.update(new Remove(key, second)).get();
                found.put("removed", table.get(key).get() == null && !table.exists(key).get());
                found.put("removed again", failure(table.update(new Put(key, buffer("no"), second))));
                TableKey never = new TableKey(buffer("0001"), buffer("zz"));
                found.put("never there", failure(table.update(new Put(never, buffer("no"), second))));
                found.put("of one", listed(table.iterator().maxIterationSize(2).forPrimaryKey(buffer("0001"))));
                found.put("range", listed(table.iterator().maxIterationSize(3).forRange(buffer("0003"), buffer("0005"))));
                found.put("all", listed(table.iterator().maxIterationSize(7).all()));
                found.put("many", table.getAll(List.of(key, never, new TableKey(buffer("0002"), buffer("bb")))).get().stream()
                        .map(one -> one == null ? "" : text(one.getValue())).collect(Collectors.toList()));
            }
            found.put("deleted", manager.deleteKeyValueTable(scope, name));
            found.put("deleted again", manager.deleteKeyValueTable(scope, name));
        }
        return found;
    }

    private static Object scale(String scope, String stream, ClientConfig config, JsonNode command) throws Exception {
        Map<Double, Double> ranges = new TreeMap<>();
        command.get("ranges").forEach(one -> ranges.put(one.get(0).asDouble(), one.get(1).asDouble()));
        List<Long> sealed = new ArrayList<>();
        command.get("sealed").forEach(one -> sealed.add(one.asLong()));
        try (Controller controller = new ControllerImpl(ControllerImplConfig.builder().clientConfig(config).build(), EXECUTOR)) {
            return controller.scaleStream(Stream.of(scope, stream), sealed, ranges, EXECUTOR).getFuture().get(60, TimeUnit.SECONDS);
        }
    }
}

package anabranch.tests;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.JavaSerializer;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableKey;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;

/** Programs as users write them after the samples of Pravega's authors. Each begins in a scope without streams. */
final class PravegaSamples implements AutoCloseable {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final long PATIENCE_S = 60;

    private final String scope;
    private final ClientConfig config;
    private final ScheduledExecutorService executor;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final StreamManager streams;
    private final ReaderGroupManager groups;
    private final EventStreamClientFactory clients;

    PravegaSamples(String scope, ClientConfig config, ScheduledExecutorService executor) {
        this.scope = scope;
        this.config = config;
        this.executor = executor;
        streams = StreamManager.create(config);
        streams.createScope(scope);
        groups = ReaderGroupManager.withScope(scope, config);
        clients = EventStreamClientFactory.withScope(scope, config);
    }

    @Override
    public void close() {
        clients.close();
        groups.close();
        streams.close();
        threads.shutdownNow();
    }

    Object run(String program) throws Exception {
        return switch (program) {
            case "administration" -> administer();
            case "console" -> console();
            case "shared map" -> shareMap();
            case "stream cuts" -> cutStreams();
            case "chat" -> chat();
            case "exactly once" -> processExactlyOnce();
            default -> throw new IllegalArgumentException(program);
        };
    }

    // --- what the programs have in common

    private Stream make(String name, int segments) {
        streams.createStream(scope, name, StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build());
        return Stream.of(scope, name);
    }

    private EventStreamWriter<String> writer(Stream stream) {
        return clients.createEventWriter(stream.getStreamName(), TEXT, EventWriterConfig.builder().build());
    }

    private TransactionalEventStreamWriter<String> transactionalWriter(Stream stream) {
        return clients.createTransactionalEventWriter(stream.getStreamName(), TEXT, EventWriterConfig.builder().build());
    }

    private ReaderGroup group(ReaderGroupConfig of) {
        String name = UUID.randomUUID().toString().replace("-", "");
        groups.createReaderGroup(name, of);
        return groups.getReaderGroup(name);
    }

    private EventStreamReader<String> reader(ReaderGroup group, String id) {
        return clients.createReader(id, group.getGroupName(), TEXT, ReaderConfig.builder().build());
    }

    /** The next so many events. */
    private static List<String> read(EventStreamReader<String> reader, int count) throws TimeoutException {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (found.size() < count) {
            String event = reader.readNextEvent(1000).getEvent();
            if (event != null) {
                found.add(event);
            } else if (System.nanoTime() > end) {
                throw new TimeoutException(found.size() + " of " + count + " events");
            }
        }
        return found;
    }

    /** All events of a group that ends; "more" is added if it has more than so many. */
    private List<String> readAll(ReaderGroupConfig of, int count) throws Exception {
        try (ReaderGroup group = group(of); EventStreamReader<String> reader = reader(group, "all")) {
            List<String> found = read(reader, count);
            if (reader.readNextEvent(200).getEvent() != null) {
                found.add("more");
            }
            return found;
        }
    }

    private static Transaction.Status outcome(Transaction<String> transaction) throws InterruptedException {
        Transaction.Status status = transaction.checkStatus();
        while (status == Transaction.Status.COMMITTING || status == Transaction.Status.ABORTING) {
            Thread.sleep(20);
            status = transaction.checkStatus();
        }
        return status;
    }

    // --- the programs

    /** Scopes, streams and their tags. */
    private Object administer() {
        Map<String, Object> found = new HashMap<>();
        StreamConfiguration tagged = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(2))
                .tag("red").tag("round").build();
        found.put("again", streams.createScope(scope));
        found.put("made", streams.createStream(scope, "tagged", tagged));
        make("plain", 1);
        found.put("there", List.of(streams.checkScopeExists(scope), streams.checkScopeExists("no-such"),
                streams.checkStreamExists(scope, "plain"), streams.checkStreamExists(scope, "no-such")));
        found.put("tags", streams.getStreamTags(scope, "tagged").stream().sorted().toList());
        List<String> red = new ArrayList<>();
        streams.listStreams(scope, "red").forEachRemaining(one -> red.add(one.getStreamName()));
        found.put("red", red);
        List<String> scopes = new ArrayList<>();
        streams.listScopes().forEachRemaining(scopes::add);
        found.put("listed", scopes.contains(scope));
        for (String name : List.of("tagged", "plain")) {
            streams.sealStream(scope, name);
            streams.deleteStream(scope, name);
        }
        found.put("deleted", streams.deleteScope(scope));
        found.put("left", streams.checkScopeExists(scope));
        return found;
    }

    /** Where a reader was when it had shown so many events. */
    private record Place(int shown, Map<Stream, StreamCut> cuts) {}

    /** A console that writes, and one that shows events and remembers its place after each. */
    private Object console() throws Exception {
        Map<String, Object> found = new HashMap<>();
        Stream stream = make("console", 1);
        List<String> shown = new ArrayList<>();
        Place[] place = {new Place(0, Map.of())};
        AtomicBoolean over = new AtomicBoolean();
        Future<?> showing = threads.submit(() -> {
            try (ReaderGroup group = group(ReaderGroupConfig.builder().disableAutomaticCheckpoints()
                        .groupRefreshTimeMillis(200).stream(stream).build());
                    EventStreamReader<String> reader = reader(group, "background")) {
                CompletableFuture<Void> placing = CompletableFuture.completedFuture(null);
                while (!over.get()) {
                    EventRead<String> event = reader.readNextEvent(100);
                    if (event.getEvent() != null) {
                        shown.add(event.getEvent());
                    }
                    int count = shown.size();
                    if (placing.isDone()) {
                        placing = group.initiateCheckpoint("at" + System.nanoTime(), executor).thenAccept(made -> {
                            synchronized (place) {
                                place[0] = new Place(count, made.asImpl().getPositions());
                                place.notifyAll();
                            }
                        });
                    }
                }
            }
        });
        Map<Stream, StreamCut> cuts;
        try (EventStreamWriter<String> writer = writer(stream);
                TransactionalEventStreamWriter<String> transactions = transactionalWriter(stream)) {
            for (int number = 0; number < 10; number++) {
                if (number % 2 == 0) {
                    writer.writeEvent("event " + number).get();
                } else {
                    writer.writeEvent("key", "event " + number).get();
                }
            }
            cuts = await(place, 10).cuts();
            List<String> states = new ArrayList<>();
            for (boolean commits : new boolean[] {false, true}) {
                Transaction<String> transaction = transactions.beginTxn();
                transaction.writeEvent("key", "told " + commits);
                transaction.writeEvent("without a key, told " + commits);
                transaction.flush();
                Transaction<String> same = transactions.getTxn(transaction.getTxnId());
                states.add(same.checkStatus().name());
                if (commits) {
                    transaction.commit();
                } else {
                    transaction.abort();
                }
                states.add(outcome(same).name());
            }
            found.put("states", states);
            await(place, 12);
        } finally {
            over.set(true);
        }
        showing.get(PATIENCE_S, TimeUnit.SECONDS);
        found.put("shown", shown);
        found.put("from", readAll(ReaderGroupConfig.builder().stream(stream).startingStreamCuts(cuts).build(), 2));
        found.put("up to", readAll(ReaderGroupConfig.builder().stream(stream).endingStreamCuts(cuts).build(), 10));
        return found;
    }

    private static Place await(Place[] place, int shown) throws InterruptedException, TimeoutException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        synchronized (place) {
            while (place[0].shown() < shown) {
                if (System.nanoTime() > end) {
                    throw new TimeoutException(place[0].shown() + " of " + shown + " events");
                }
                place.wait(1000);
            }
            return place[0];
        }
    }

    private static final class SharedMap implements Revisioned {
        private final String stream;
        private final Revision revision;
        private final HashMap<String, Integer> values;

        SharedMap(String stream, Revision revision, HashMap<String, Integer> values) {
            this.stream = stream;
            this.revision = revision;
            this.values = values;
        }

        @Override
        public String getScopedStreamName() {
            return stream;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    private record Change(String key, int value) implements Update<SharedMap>, Serializable {
        @Override
        public SharedMap applyTo(SharedMap old, Revision revision) {
            HashMap<String, Integer> values = new HashMap<>(old.values);
            values.put(key, value);
            return new SharedMap(old.stream, revision, values);
        }
    }

    private record Begin(HashMap<String, Integer> values) implements InitialUpdate<SharedMap>, Serializable {
        @Override
        public SharedMap create(String stream, Revision revision) {
            return new SharedMap(stream, revision, values);
        }
    }

    private static StateSynchronizer<SharedMap> synchronizer(SynchronizerClientFactory factory) {
        StateSynchronizer<SharedMap> made = factory.createStateSynchronizer("map", new JavaSerializer<Change>(),
                new JavaSerializer<Begin>(), SynchronizerConfig.builder().build());
        made.initialize(new Begin(new HashMap<>()));
        return made;
    }

    /** Programs that count together, while one of them compacts what they share. */
    private Object shareMap() throws Exception {
        make("map", 1);
        int programs = 4;
        List<Future<Boolean>> running = new ArrayList<>();
        for (int one = 0; one < programs; one++) {
            int number = one;
            running.add(threads.submit(() -> {
                try (SynchronizerClientFactory factory = SynchronizerClientFactory.withScope(scope, config);
                        StateSynchronizer<SharedMap> map = synchronizer(factory)) {
                    map.fetchUpdates();
                    AtomicBoolean first = new AtomicBoolean();
                    map.updateState((state, updates) -> {
                        first.set(!state.values.containsKey("first"));
                        if (first.get()) {
                            updates.add(new Change("first", number));
                        }
                    });
                    for (int round = 0; round < 25; round++) {
                        map.updateState((state, updates) -> {
                            updates.add(new Change("sum", state.values.getOrDefault("sum", 0) + 1));
                        });
                        if (number == 0 && round % 10 == 9) {
                            map.compact(state -> new Begin(state.values));
                        }
                    }
                    map.updateStateUnconditionally(new Change("done " + number, 1));
                    return first.get();
                }
            }));
        }
        int first = 0;
        for (Future<Boolean> one : running) {
            first += one.get(PATIENCE_S, TimeUnit.SECONDS) ? 1 : 0;
        }
        try (SynchronizerClientFactory factory = SynchronizerClientFactory.withScope(scope, config);
                StateSynchronizer<SharedMap> map = synchronizer(factory)) {
            map.fetchUpdates();
            Map<String, Integer> values = new HashMap<>(map.getState().values);
            values.put("first", first);
            return values;
        }
    }

    /** A part of each of several streams, which are read by one group and by the batch client. */
    private Object cutStreams() throws Exception {
        Map<String, Object> found = new HashMap<>();
        List<String> between = new ArrayList<>();
        List<String> batch = new ArrayList<>();
        ReaderGroupConfig.ReaderGroupConfigBuilder parts = ReaderGroupConfig.builder();
        for (String name : List.of("first", "second", "third")) {
            Stream stream = make(name, 2);
            try (EventStreamWriter<String> writer = writer(stream)) {
                for (int number = 0; number < 20; number++) {
                    writer.writeEvent("key " + number % 5, name + " " + number);
                }
            }
            List<StreamCut> cuts = new ArrayList<>();
            try (ReaderGroup group = group(ReaderGroupConfig.builder().stream(stream).build())) {
                for (int count : new int[] {5, 7}) {
                    List<String> events;
                    try (EventStreamReader<String> reader = reader(group, "once-more")) {
                        events = read(reader, count);
                    }
                    cuts.add(group.getStreamCuts().get(stream));
                    if (cuts.size() == 2) {
                        between.addAll(events);
                    }
                }
            }
            parts.stream(stream, cuts.get(0), cuts.get(1));
            try (BatchClientFactory factory = BatchClientFactory.withScope(scope, config)) {
                factory.getSegments(stream, cuts.get(0), cuts.get(1)).getIterator().forEachRemaining(
                        range -> factory.readSegment(range, TEXT).forEachRemaining(batch::add));
            }
        }
        found.put("between", between);
        found.put("batch", batch);
        found.put("group", readAll(parts.build(), between.size()));
        return found;
    }

    private static ByteBuffer padded(String text) {
        return ByteBuffer.wrap(String.format("%10s", text).getBytes(StandardCharsets.US_ASCII));
    }

    private static ByteBuffer buffer(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    /** Channels that are streams, and a table of who listens to which and how far. */
    private Object chat() throws Exception {
        Map<String, Object> found = new HashMap<>();
        try (KeyValueTableManager manager = KeyValueTableManager.create(config)) {
            manager.createKeyValueTable(scope, "subscriptions", KeyValueTableConfiguration.builder()
                    .partitionCount(2).primaryKeyLength(10).secondaryKeyLength(10).build());
        }
        try (KeyValueTableFactory factory = KeyValueTableFactory.withScope(scope, config);
                KeyValueTable table = factory.forKeyValueTable("subscriptions", KeyValueTableClientConfiguration.builder().build());
                EventStreamWriter<String> rivers = writer(make("rivers", 1))) {
            for (String channel : List.of("rivers", "lakes")) {
                table.update(new Insert(new TableKey(padded("alice"), padded(channel)), buffer(StreamCut.UNBOUNDED.asText()))).join();
            }
            TableKey key = new TableKey(padded("alice"), padded("rivers"));
            try {
                table.update(new Insert(key, buffer(StreamCut.UNBOUNDED.asText()))).join();
            } catch (CompletionException error) {
                found.put("twice", error.getCause() instanceof ConditionalTableUpdateException);
            }
            List<String> heard = new ArrayList<>();
            for (String said : List.of("Rhine", "Elbe")) {
                rivers.writeEvent("key", said).get();
                heard.addAll(listen(table, key));
            }
            found.put("heard", heard);
            table.update(new Remove(new TableKey(padded("alice"), padded("lakes")))).join();
            List<String> left = new ArrayList<>();
            table.iterator().maxIterationSize(1).forPrimaryKey(padded("alice")).keys().forEachRemaining(page -> page.getItems()
                    .forEach(one -> left.add(StandardCharsets.US_ASCII.decode(one.getSecondaryKey()).toString().trim())), executor).join();
            found.put("left", left);
        }
        return found;
    }

    /** One message from where the user has come to, which the table then says. */
    private List<String> listen(KeyValueTable table, TableKey key) throws Exception {
        StreamCut from = StreamCut.from(StandardCharsets.UTF_8.decode(table.get(key).join().getValue()).toString());
        Stream stream = Stream.of(scope, "rivers");
        try (ReaderGroup group = group(ReaderGroupConfig.builder().stream(stream, from).groupRefreshTimeMillis(200).build())) {
            List<String> heard;
            try (EventStreamReader<String> reader = reader(group, "listener")) {
                heard = read(reader, 1);
                CompletableFuture<Map<Stream, StreamCut>> cuts = group.generateStreamCuts(executor);
                long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
                while (!cuts.isDone() && System.nanoTime() < end) {
                    reader.readNextEvent(50);
                }
                table.update(new Put(key, buffer(cuts.get(1, TimeUnit.SECONDS).get(stream).asText()))).join();
            }
            groups.deleteReaderGroup(group.getGroupName());
            return heard;
        }
    }

    /** A program that copies events in transactions, dies after a checkpoint, and goes on from there. */
    private Object processExactlyOnce() throws Exception {
        Stream from = make("from", 2);
        Stream to = make("to", 1);
        int count = 30;
        try (EventStreamWriter<String> writer = writer(from)) {
            for (int number = 0; number < count; number++) {
                writer.writeEvent("key " + number % 7, Integer.toString(number));
            }
        }
        ReaderGroup group = group(ReaderGroupConfig.builder().disableAutomaticCheckpoints().groupRefreshTimeMillis(200).stream(from).build());
        EventStreamReader<String> dead = reader(group, "dead");
        TransactionalEventStreamWriter<String> writer = transactionalWriter(to);
        Transaction<String> transaction = writer.beginTxn();
        int before = 10;
        for (String event : read(dead, before)) {
            transaction.writeEvent("key", event);
        }
        CompletableFuture<Checkpoint> checkpoint = group.initiateCheckpoint("kept", executor);
        EventRead<String> event = dead.readNextEvent(1000);
        while (!event.isCheckpoint()) {
            if (event.getEvent() != null) {
                transaction.writeEvent("key", event.getEvent());
                before++;
            }
            event = dead.readNextEvent(1000);
        }
        transaction.flush();
        // The next read says that the checkpoint is done. What comes after it is written, and lost with the program.
        Transaction<String> lost = writer.beginTxn();
        event = dead.readNextEvent(1000);
        if (event.getEvent() != null) {
            lost.writeEvent("key", event.getEvent());
            lost.flush();
        }
        ByteBuffer kept = checkpoint.get(PATIENCE_S, TimeUnit.SECONDS).toBytes();
        UUID id = transaction.getTxnId();
        writer.close();

        List<String> states = new ArrayList<>();
        group.resetReaderGroup(ReaderGroupConfig.builder().disableAutomaticCheckpoints().groupRefreshTimeMillis(200)
                .startFromCheckpoint(Checkpoint.fromBytes(kept)).build());
        try (TransactionalEventStreamWriter<String> again = transactionalWriter(to);
                EventStreamReader<String> reader = reader(group, "alive")) {
            again.getTxn(id).commit();
            states.add(outcome(again.getTxn(id)).name());
            Transaction<String> rest = again.beginTxn();
            for (String one : read(reader, count - before)) {
                rest.writeEvent("key", one);
            }
            rest.commit();
            states.add(outcome(rest).name());
        }
        dead.close();
        group.close();
        return Map.of("states", states, "copied", readAll(ReaderGroupConfig.builder().stream(to).build(), count));
    }
}

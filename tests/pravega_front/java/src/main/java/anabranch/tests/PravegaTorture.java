package anabranch.tests;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.segment.impl.ServerTimeoutException;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.impl.ByteArraySerializer;
import io.pravega.common.util.RetriesExhaustedException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;

/**
 * One client that keeps working while its node is killed and started again. Prints a line for everything it is told, as
 * soon as it is told it, and ends when its input does: the same lines as tests/torture/torture_pravega_client.py.
 */
public final class PravegaTorture {
    private static final Serializer<byte[]> BYTES = new ByteArraySerializer();
    private static final String SCOPE = "torture";
    private static final String STREAM = "events";
    private static final int KEYS = 5;
    private static final int MOST_EVENTS_OF_TRANSACTION = 40;
    private static final double READER_LIFE_SECONDS = 4;

    private final Map<String, String> arguments = new HashMap<>();
    private final EventStreamClientFactory factory;
    private final ClientConfig config;
    private final long began = System.nanoTime();
    private volatile boolean finished;
    private int paced;

    private PravegaTorture(String[] given) {
        for (int at = 1; at < given.length; at += 2) {
            arguments.put(given[at].substring(2), given[at + 1]);
        }
        config = ClientConfig.builder().controllerURI(URI.create("tcp://" + arguments.get("controller"))).build();
        factory = EventStreamClientFactory.withScope(SCOPE, config);
        Thread input = new Thread(this::awaitEnd);
        input.setDaemon(true);
        input.start();
    }

    public static void main(String[] given) throws Exception {
        PravegaTorture client = new PravegaTorture(given);
        switch (given[0]) {
            case "write":
                client.write();
                break;
            case "transact":
                client.transact();
                break;
            case "read":
                client.read();
                break;
            default:
                throw new IllegalArgumentException(given[0]);
        }
        System.exit(0);
    }

    private void awaitEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            System.err.println("the input failed: " + error);
        }
        finished = true;
    }

    private static void tell(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static String keyOf(int number) {
        return Integer.toString(number % KEYS);
    }

    /** As payload in tests/torture/torture_load.py makes it. */
    private byte[] payload(int number) throws Exception {
        String name = arguments.get("name");
        String seed = arguments.get("seed") + "/" + name + "/" + number;
        byte[] digest = MessageDigest.getInstance("SHA-512").digest(seed.getBytes(StandardCharsets.UTF_8));
        int size = ((digest[0] & 0xff) << 8 | digest[1] & 0xff) % 1500;
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        made.write((name + ":" + number + ":").getBytes(StandardCharsets.UTF_8));
        for (int at = 0; at < size; at++) {
            int place = at % (2 * digest.length);
            made.write(place < digest.length ? digest[place] : 0);
        }
        return made.toByteArray();
    }

    /** How many events are due from now on; 0 at the end. */
    private int due() throws InterruptedException {
        double rate = Double.parseDouble(arguments.get("rate"));
        while (!finished) {
            int due = (int) ((System.nanoTime() - began) / 1e9 * rate);
            if (due > paced) {
                int count = Math.min(due - paced, 200);
                paced = due;
                return count;
            }
            Thread.sleep(20);
        }
        return 0;
    }

    private void write() throws Exception {
        try (EventStreamWriter<byte[]> writer = factory.createEventWriter(STREAM, BYTES, EventWriterConfig.builder().build())) {
            int number = 0;
            for (int count = due(); count > 0; count = due()) {
                List<CompletableFuture<Void>> written = new ArrayList<>();
                for (int end = number + count; number < end; number++) {
                    written.add(writer.writeEvent(keyOf(number), payload(number)));
                }
                tell("sent", number, number);
                for (CompletableFuture<Void> one : written) {
                    one.get();
                }
                tell("acked", number - count, number);
            }
        }
    }

    private void transact() throws Exception {
        Random choice = new Random(Long.parseLong(arguments.get("seed")));
        try (TransactionalEventStreamWriter<byte[]> writer = factory.createTransactionalEventWriter(
                "torture", STREAM, BYTES, EventWriterConfig.builder().transactionTimeoutTime(60_000).build())) {
            int number = 0;
            for (int count = due(); count > 0; count = due()) {
                int first = number;
                number += Math.min(count, MOST_EVENTS_OF_TRANSACTION);
                tell("open", first, number);
                try {
                    transact(writer, first, number, choice.nextInt(10));
                } catch (TxnFailedException error) {
                    tell("failed", first, number, error);
                } catch (RuntimeException error) {
                    goOn(error); // what became of the transaction stays open, or asked for
                }
            }
        }
    }

    private void transact(TransactionalEventStreamWriter<byte[]> writer, int first, int end, int what) throws Exception {
        Transaction<byte[]> transaction = writer.beginTxn();
        for (int number = first; number < end; number++) {
            transaction.writeEvent(keyOf(number), payload(number));
        }
        if (what < 6) {
            tell("asked", first, end);
            transaction.commit();
            tell("committed", first, end);
        } else if (what < 9) {
            transaction.abort();
            tell("aborted", first, end);
        }
    }

    /** For a client that tried ten times, twenty seconds apart at last, and may have met a node that is down each time. */
    private static void goOn(RuntimeException error) {
        if (!isOf(error, RetriesExhaustedException.class)) {
            throw error;
        }
        System.err.println("once more: " + error);
    }

    private void createGroup(ReaderGroupManager manager, String group) {
        ReaderGroupConfig wanted = ReaderGroupConfig.builder().stream(Stream.of(SCOPE, STREAM)).build();
        while (true) {
            try {
                manager.createReaderGroup(group, wanted);
                return;
            } catch (RuntimeException error) {
                goOn(error);
            }
        }
    }

    private static boolean isOf(Throwable error, Class<? extends Throwable> kind) {
        return error != null && (kind.isInstance(error) || isOf(error.getCause(), kind));
    }

    /** Null if the client took longer than its 5 s to ask how far its group is: it meets a node that is down, and waits up
     * to 10 s until it asks again. It has taken no event then. */
    private static EventRead<byte[]> next(EventStreamReader<byte[]> reader) {
        try {
            return reader.readNextEvent(500);
        } catch (ServerTimeoutException error) {
            System.err.println("once more: " + error);
            return null;
        }
    }

    /** A reader that meets a node that is down as it leaves its group leaves it later. */
    private static void close(EventStreamReader<byte[]> reader, ReaderGroup group, String id, Position position) {
        try {
            reader.close();
            group.close();
            return;
        } catch (ServerTimeoutException error) {
            System.err.println("once more: " + error);
        }
        while (true) {
            try {
                group.readerOffline(id, position);
                group.close();
                return;
            } catch (ServerTimeoutException error) {
                System.err.println("once more: " + error);
            }
        }
    }

    private void read() throws Exception {
        String group = arguments.get("name");
        try (ReaderGroupManager manager = ReaderGroupManager.withScope(SCOPE, config)) {
            createGroup(manager, group);
            for (int life = 0; ; life++) {
                String id = group + "-" + life;
                Position position = null;
                EventStreamReader<byte[]> reader = factory.createReader(id, group, BYTES, ReaderConfig.builder().build());
                long begun = System.nanoTime();
                while (finished || (System.nanoTime() - begun) / 1e9 < READER_LIFE_SECONDS) {
                    EventRead<byte[]> read = next(reader);
                    if (read == null) {
                        continue;
                    }
                    position = read.getPosition();
                    if (read.getEvent() != null) {
                        String[] words = new String(read.getEvent(), StandardCharsets.ISO_8859_1).split(":", 3);
                        tell("read", words[0], Integer.parseInt(words[1]));
                    }
                }
                close(reader, manager.getReaderGroup(group), id, position);
            }
        }
    }
}

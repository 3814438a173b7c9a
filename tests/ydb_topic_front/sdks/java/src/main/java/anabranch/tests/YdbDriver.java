package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import tech.ydb.common.transaction.TxMode;
import tech.ydb.core.auth.StaticCredentials;
import tech.ydb.core.grpc.GrpcTransport;
import tech.ydb.core.grpc.GrpcTransportBuilder;
import tech.ydb.query.QueryClient;
import tech.ydb.query.QuerySession;
import tech.ydb.query.QueryTransaction;
import tech.ydb.topic.TopicClient;
import tech.ydb.topic.description.Codec;
import tech.ydb.topic.description.Consumer;
import tech.ydb.topic.description.MetadataItem;
import tech.ydb.topic.description.PartitionInfo;
import tech.ydb.topic.description.SupportedCodecs;
import tech.ydb.topic.description.TopicDescription;
import tech.ydb.topic.read.SyncReader;
import tech.ydb.topic.settings.AlterTopicSettings;
import tech.ydb.topic.settings.CreateTopicSettings;
import tech.ydb.topic.settings.DescribeConsumerSettings;
import tech.ydb.topic.settings.PartitioningSettings;
import tech.ydb.topic.settings.ReaderSettings;
import tech.ydb.topic.settings.ReceiveSettings;
import tech.ydb.topic.settings.SendSettings;
import tech.ydb.topic.settings.TopicReadSettings;
import tech.ydb.topic.settings.WriterSettings;
import tech.ydb.topic.write.AsyncWriter;
import tech.ydb.topic.write.Message;
import tech.ydb.topic.write.QueueOverflowException;
import tech.ydb.topic.write.SyncWriter;
import tech.ydb.topic.write.WriteAck;

/** Reads commands as JSON lines from standard input and prints one JSON line for each. */
public final class YdbDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_SECONDS = 40;
    /** How long a transaction's messages may not come before the reader begins anew. */
    private static final long STEP_SECONDS = 5;
    private static final Codec[] CODECS = {null, Codec.RAW, Codec.GZIP, Codec.LZOP, Codec.ZSTD};

    private final Map<String, Clients> clients = new HashMap<>();

    private record Clients(TopicClient topics, QueryClient queries) {}

    private record Outgoing(long seq, byte[] data, List<MetadataItem> metadata) {}

    /** Clients for each address and user. */
    private Clients clients(JsonNode command) throws IOException {
        String user = command.path("user").asText("");
        String ca = command.path("ca").asText("");
        String url = (ca.isEmpty() ? "grpc://" : "grpcs://")
            + command.get("endpoint").asText() + command.get("database").asText();
        String key = String.join("|", url, user, command.path("password").asText(""), ca);
        Clients found = clients.get(key);
        if (found == null) {
            GrpcTransportBuilder builder = GrpcTransport.forConnectionString(url);
            if (!ca.isEmpty()) {
                builder.withSecureConnection(Files.readAllBytes(Path.of(ca)));
            }
            if (!user.isEmpty()) {
                builder.withAuthProvider(new StaticCredentials(user, command.get("password").asText()));
            }
            GrpcTransport transport = builder.build();
            found = new Clients(TopicClient.newClient(transport).build(), QueryClient.newClient(transport).build());
            clients.put(key, found);
        }
        return found;
    }

    private static <T> T wait(CompletableFuture<T> future)
        throws InterruptedException, ExecutionException, TimeoutException {
        return future.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    private static List<String> texts(JsonNode array) {
        List<String> found = new ArrayList<>();
        array.forEach(item -> found.add(item.asText()));
        return found;
    }

    private void create(TopicClient client, JsonNode command) throws Exception {
        SupportedCodecs.Builder codecs = SupportedCodecs.newBuilder();
        command.get("codecs").forEach(codec -> codecs.addCodec(CODECS[codec.asInt()]));
        CreateTopicSettings.Builder settings = CreateTopicSettings.newBuilder()
            .setPartitioningSettings(
                PartitioningSettings.newBuilder().setMinActivePartitions(command.get("partitions").asLong()).build())
            .setSupportedCodecs(codecs.build());
        for (String name : texts(command.get("consumers"))) {
            settings.addConsumer(Consumer.newBuilder().setName(name).build());
        }
        wait(client.createTopic(command.get("path").asText(), settings.build())).expectSuccess("create");
    }

    private void addConsumer(TopicClient client, JsonNode command) throws Exception {
        AlterTopicSettings settings = AlterTopicSettings.newBuilder()
            .addAddConsumer(Consumer.newBuilder().setName(command.get("consumer").asText()).build())
            .build();
        wait(client.alterTopic(command.get("path").asText(), settings)).expectSuccess("alter");
    }

    private JsonNode describe(TopicClient client, JsonNode command) throws Exception {
        TopicDescription topic = wait(client.describeTopic(command.get("path").asText())).getValue();
        ObjectNode result = JSON.createObjectNode();
        ArrayNode partitions = result.putArray("partitions");
        for (PartitionInfo partition : topic.getPartitions()) {
            partitions.add(partition.getPartitionId());
        }
        ArrayNode consumers = result.putArray("consumers");
        topic.getConsumers().forEach(consumer -> consumers.add(consumer.getName()));
        ArrayNode codecs = result.putArray("codecs");
        for (Codec codec : topic.getSupportedCodecs().getCodecs()) {
            codecs.add(Arrays.asList(CODECS).indexOf(codec));
        }
        return result;
    }

    private static List<Outgoing> given(JsonNode command) throws IOException {
        List<Outgoing> messages = new ArrayList<>();
        for (JsonNode message : command.get("messages")) {
            List<MetadataItem> metadata = new ArrayList<>();
            var fields = message.get("metadata").fields();
            while (fields.hasNext()) {
                var field = fields.next();
                metadata.add(new MetadataItem(field.getKey(), field.getValue().binaryValue()));
            }
            messages.add(new Outgoing(message.get("seq").asLong(), message.get("data").binaryValue(), metadata));
        }
        return messages;
    }

    private static List<Outgoing> many(JsonNode command) {
        List<Outgoing> messages = new ArrayList<>();
        for (int i = 0; i < command.get("count").asInt(); i++) {
            byte[] data = (command.get("prefix").asText() + i).getBytes(StandardCharsets.UTF_8);
            messages.add(new Outgoing(command.get("first").asLong() + i, data, List.of()));
        }
        return messages;
    }

    private JsonNode write(TopicClient client, JsonNode command, List<Outgoing> messages, int atOnce)
        throws Exception {
        String producer = command.get("producer").asText();
        WriterSettings.Builder settings = WriterSettings.newBuilder()
            .setTopicPath(command.get("path").asText())
            .setProducerId(producer)
            .setCodec(CODECS[command.get("codec").asInt()]);
        if (command.path("partition").isNumber()) {
            settings.setPartitionId(command.get("partition").asLong());
        } else {
            settings.setMessageGroupId(producer);
        }
        AsyncWriter writer = client.createAsyncWriter(settings.build());
        wait(writer.init());
        ArrayNode acks = JSON.createArrayNode();
        try {
            for (int first = 0; first < messages.size(); first += atOnce) {
                List<CompletableFuture<WriteAck>> futures = new ArrayList<>();
                for (Outgoing message : messages.subList(first, Math.min(messages.size(), first + atOnce))) {
                    futures.add(send(writer, message));
                }
                for (CompletableFuture<WriteAck> future : futures) {
                    WriteAck ack = wait(future);
                    boolean written = ack.getState() == WriteAck.State.WRITTEN;
                    ArrayNode told = acks.addArray().add(ack.getSeqNo()).add(written ? "written" : "skipped");
                    told.add(written ? ack.getDetails().getOffset() : -1);
                }
            }
        } finally {
            wait(writer.shutdown());
        }
        return acks;
    }

    private static CompletableFuture<WriteAck> send(AsyncWriter writer, Outgoing message)
        throws QueueOverflowException {
        Message.Builder built = Message.newBuilder()
            .setData(message.data())
            .setSeqNo(message.seq())
            .setCreateTimestamp(Instant.now());
        message.metadata().forEach(built::addMetadataItem);
        return writer.send(built.build());
    }

    private JsonNode read(TopicClient client, JsonNode command) throws Exception {
        SyncReader reader = client.createSyncReader(ReaderSettings.newBuilder()
            .setConsumerName(command.get("consumer").asText())
            .addTopic(TopicReadSettings.newBuilder().setPath(command.get("path").asText()).build())
            .build());
        reader.initAndWait();
        ArrayNode found = JSON.createArrayNode();
        try {
            while (found.size() < command.get("count").asInt()) {
                tech.ydb.topic.read.Message message = reader.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
                if (message == null) {
                    throw new TimeoutException("after " + found.size() + " messages");
                }
                ObjectNode told = found.addObject()
                    .put("partition", message.getPartitionSession().getPartitionId())
                    .put("offset", message.getOffset())
                    .put("seq", message.getSeqNo())
                    .put("producer", message.getProducerId())
                    .put("data", message.getData());
                ObjectNode metadata = told.putObject("metadata");
                message.getMetadataItems().forEach(item -> metadata.put(item.getKey(), item.getValue()));
                if (command.get("commit").asBoolean()) {
                    wait(message.commit());
                }
            }
        } finally {
            reader.shutdown();
        }
        return found;
    }

    /** Whether a consumer of a topic with one partition has committed so many messages. */
    private static boolean isCopied(TopicClient client, JsonNode command) throws Exception {
        DescribeConsumerSettings settings = DescribeConsumerSettings.newBuilder().withIncludeStats(true).build();
        String consumer = command.get("consumer").asText();
        var found = wait(client.describeConsumer(command.get("path").asText(), consumer, settings)).getValue();
        long committed = found.getPartitions().get(0).getConsumerStats().getCommittedOffset();
        return committed >= command.get("count").asLong();
    }

    /** Copies a topic of one partition in transactions. What a node's death breaks is done again by a new reader. */
    private void copy(Clients clients, JsonNode command) throws Exception {
        ReaderSettings settings = ReaderSettings.newBuilder()
            .setConsumerName(command.get("consumer").asText())
            .addTopic(TopicReadSettings.newBuilder().setPath(command.get("path").asText()).build())
            .build();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        for (boolean done = false; !done; ) {
            SyncReader reader = clients.topics().createSyncReader(settings);
            try {
                reader.init();
                while (!(done = isCopied(clients.topics(), command))) {
                    copySome(clients, reader, command.get("target").asText());
                }
            } catch (RuntimeException | ExecutionException failure) {
                if (System.nanoTime() > end) {
                    throw failure;
                }
                Thread.sleep(50);
            } finally {
                reader.shutdown();
            }
        }
    }

    /** Copies three messages, or as many as there are, in one transaction. */
    private static void copySome(Clients clients, SyncReader reader, String target) throws Exception {
        try (QuerySession session = wait(clients.queries().createSession(Duration.ofSeconds(STEP_SECONDS))).getValue()) {
            QueryTransaction transaction = wait(session.beginTransaction(TxMode.SERIALIZABLE_RW)).getValue();
            SendSettings send = SendSettings.newBuilder().setTransaction(transaction).build();
            String producer = UUID.randomUUID().toString();
            SyncWriter writer = clients.topics().createSyncWriter(WriterSettings.newBuilder()
                .setTopicPath(target).setProducerId(producer).setMessageGroupId(producer).setCodec(Codec.RAW).build());
            try {
                writer.initAndWait();
                for (int count = 0; count < 3; count++) {
                    // The first message is waited for, others that are there already belong to it.
                    var message = reader.receive(ReceiveSettings.newBuilder().setTransaction(transaction)
                        .setTimeout(count == 0 ? 1000 * STEP_SECONDS : 10, TimeUnit.MILLISECONDS).build());
                    if (message == null) {
                        if (count == 0) {
                            throw new IllegalStateException("nothing to copy");
                        }
                        break;
                    }
                    writer.send(Message.of(message.getData()), send);
                }
                writer.flush();
                wait(transaction.commit()).getStatus().expectSuccess("commit");
            } finally {
                writer.shutdown(STEP_SECONDS, TimeUnit.SECONDS);
            }
        }
    }

    private JsonNode run(JsonNode command) throws Exception {
        Clients clients = clients(command);
        TopicClient client = clients.topics();
        String path = command.get("path").asText();
        switch (command.get("op").asText()) {
            case "create" -> create(client, command);
            case "add_consumer" -> addConsumer(client, command);
            case "drop" -> wait(client.dropTopic(path)).expectSuccess("drop");
            case "describe" -> {
                return describe(client, command);
            }
            case "write" -> {
                List<Outgoing> messages = given(command);
                return write(client, command, messages, Math.max(1, messages.size()));
            }
            case "write_many" -> {
                return write(client, command, many(command), 10);
            }
            case "read" -> {
                return read(client, command);
            }
            case "copy" -> copy(clients, command);
            default -> throw new IllegalArgumentException("no such command");
        }
        return null;
    }

    /** Reads commands until standard input ends. */
    public static void main(String[] arguments) throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        YdbDriver driver = new YdbDriver();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", driver.run(JSON.readTree(line)));
            } catch (Exception failure) {
                answer.put("error", failure.getClass().getName()).put("message", String.valueOf(failure.getMessage()));
            }
            out.println(answer);
        }
        System.exit(0);
    }
}

package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Reads commands as JSON lines from standard input and prints one JSON line for each. */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_MS = 40_000;

    private final JsonNode command;
    private final String bootstrap;
    private final String topic;

    private Driver(JsonNode command) {
        this.command = command;
        this.bootstrap = command.get("bootstrap").asText();
        this.topic = command.path("topic").asText();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(new Driver(JSON.readTree(line)).run()));
            } catch (Exception error) {
                Throwable cause = error;
                while (cause instanceof ExecutionException && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("error", Errors.forException(cause).code());
                answer.put("message", cause.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private Object run() throws Exception {
        switch (command.get("op").asText()) {
            case "produce":
                return produce();
            case "consume":
                return consume();
            case "consume_group":
                return consumeGroup();
            case "read_together":
                return readTogether();
            case "share":
                return share();
            case "transact":
                return transact();
            case "derive":
                return Deriver.step(command, settings(Map.of()));
            default:
                try (Admin admin = Admin.create(settings(Map.of()))) {
                    return administer(admin);
                }
        }
    }

    /** What every client is told: where, those given, and what the command adds for all of them. */
    private Map<String, Object> settings(Map<String, Object> given) {
        Map<String, Object> settings = new HashMap<>(given);
        settings.put("bootstrap.servers", bootstrap);
        command.path("settings").fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        return settings;
    }

    // ---- producing

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = settings(Map.of("acks", "all", "linger.ms", 20));
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private List<Long> sendAll(KafkaProducer<byte[], byte[]> producer, int partition, JsonNode records) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : records) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : record.get("headers")) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
            sent.add(producer.send(new ProducerRecord<>(
                    topic, partition, timestamp, bytes(record.get("key")), bytes(record.get("value")), headers)));
        }
        producer.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get(PATIENCE_MS, TimeUnit.MILLISECONDS).offset());
        }
        return offsets;
    }

    private Object produce() throws Exception {
        Map<String, Object> settings = Map.of(
                "compression.type", command.get("codec").asText(),
                "enable.idempotence", command.get("idempotent").asBoolean());
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            return sendAll(producer, command.get("partition").asInt(), command.get("records"));
        }
    }

    private Object transact() throws Exception {
        Map<String, Object> settings = Map.of("transactional.id", command.get("transactional_id").asText());
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            producer.initTransactions();
            for (JsonNode round : command.get("rounds")) {
                producer.beginTransaction();
                sendAll(producer, 0, round.get(1));
                if (round.get(0).asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        return null;
    }

    // ---- consuming

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = settings(Map.of(
                "enable.auto.commit", false,
                "auto.offset.reset", "earliest",
                "fetch.max.wait.ms", 100));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private KafkaConsumer<byte[], byte[]> member() {
        return member(command.get("protocol").asText(), 0);
    }

    private KafkaConsumer<byte[], byte[]> member(String protocol, int number) {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", command.get("group").asText()));
        if (command.path("instances").has(number)) {
            settings.put("group.instance.id", command.get("instances").get(number).asText());
        }
        if (protocol.equals("classic")) {
            settings.put("heartbeat.interval.ms", 300);
            settings.put("session.timeout.ms", 10_000);
        } else {
            settings.put("group.protocol", protocol);
        }
        KafkaConsumer<byte[], byte[]> consumer = consumer(settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private Object consume() throws Exception {
        Map<Integer, Integer> left = new HashMap<>();
        command.get("counts").fields().forEachRemaining(
                entry -> left.put(Integer.valueOf(entry.getKey()), entry.getValue().asInt()));
        ArrayNode got = JSON.createArrayNode();
        try (KafkaConsumer<byte[], byte[]> consumer =
                consumer(Map.of("isolation.level", command.get("isolation").asText()))) {
            List<TopicPartition> all =
                    left.keySet().stream().map(partition -> new TopicPartition(topic, partition)).collect(Collectors.toList());
            consumer.assign(all);
            for (TopicPartition where : all) {
                JsonNode start = command.get("starts").get(Integer.toString(where.partition()));
                if (start == null) {
                    consumer.seekToBeginning(List.of(where));
                } else {
                    consumer.seek(where, start.asLong());
                }
            }
            left.values().removeIf(count -> count == 0);
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (!left.isEmpty()) {
                expire(deadline, "still missing " + left + " after " + got.size() + " records");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (left.getOrDefault(record.partition(), 0) > 0) {
                        got.add(json(record));
                        left.merge(record.partition(), -1, Integer::sum);
                    }
                }
                left.values().removeIf(count -> count == 0);
            }
        }
        return got;
    }

    private Object consumeGroup() throws Exception {
        int count = command.get("count").asInt();
        ArrayNode got = JSON.createArrayNode();
        Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = member()) {
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (got.size() < count) {
                expire(deadline, "only " + got.size() + " of " + count + " records");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (got.size() < count) {
                        got.add(json(record));
                        done.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    }
                }
            }
            consumer.commitSync(done);
        }
        return got;
    }

    private Object readTogether() throws Exception {
        int count = command.get("count").asInt();
        ArrayNode got = JSON.createArrayNode();
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<byte[], byte[]> first = member(command.get("protocol").asText(), 0);
                KafkaConsumer<byte[], byte[]> second = member(command.get("second").asText(), 1)) {
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (seen.size() < count) {
                expire(deadline, "only " + seen.size() + " of " + count + " records");
                for (KafkaConsumer<byte[], byte[]> one : List.of(first, second)) {
                    ConsumerRecords<byte[], byte[]> records = one.poll(Duration.ofMillis(100));
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        got.add(json(record));
                        seen.add(record.partition() + "/" + record.offset());
                    }
                    if (!records.isEmpty()) {
                        one.commitSync();
                    }
                }
            }
        }
        return got;
    }

    private Object share() throws Exception {
        int partitions = command.get("partitions").asInt();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        Set<Integer> one;
        Set<Integer> two;
        try (KafkaConsumer<byte[], byte[]> second = member()) {
            try (KafkaConsumer<byte[], byte[]> first = member()) {
                while (true) {
                    expire(deadline, "the members never shared the partitions");
                    first.poll(Duration.ofMillis(100));
                    second.poll(Duration.ofMillis(100));
                    one = held(first);
                    two = held(second);
                    Set<Integer> both = new HashSet<>(one);
                    both.addAll(two);
                    if (!one.isEmpty() && !two.isEmpty() && both.size() == partitions && one.size() + two.size() == partitions) {
                        break;
                    }
                }
            }
            while (held(second).size() != partitions) {
                expire(deadline, "the remaining member has only " + held(second));
                second.poll(Duration.ofMillis(100));
            }
            return List.of(one, two, held(second));
        }
    }

    private static Set<Integer> held(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.assignment().stream().map(TopicPartition::partition).collect(Collectors.toSet());
    }

    // ---- administration

    private Object administer(Admin admin) throws Exception {
        String group = command.path("group").asText();
        TopicPartition where = new TopicPartition(topic, command.path("partition").asInt());
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        switch (command.get("op").asText()) {
            case "create_topic":
                NewTopic wanted = new NewTopic(topic, command.get("partitions").asInt(), (short) 1);
                wanted.configs(strings(command.get("config")));
                admin.createTopics(List.of(wanted)).all().get();
                return null;
            case "delete_topic":
                admin.deleteTopics(List.of(topic)).all().get();
                return null;
            case "topics":
                return admin.listTopics().names().get();
            case "partition_count":
                return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            case "config":
                Map<String, String> values = new HashMap<>();
                for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                    values.put(entry.name(), entry.value());
                }
                return values;
            case "set_config":
                Collection<AlterConfigOp> changes = new ArrayList<>();
                strings(command.get("values")).forEach((name, value) ->
                        changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
                admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
                return null;
            case "add_partitions":
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(command.get("total").asInt()))).all().get();
                return null;
            case "delete_records":
                RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
                admin.deleteRecords(Map.of(where, before)).all().get();
                return null;
            case "offset":
                return admin.listOffsets(Map.of(where, spec(command.get("at")))).partitionResult(where).get().offset();
            case "groups":
                return admin.listConsumerGroups().all().get().stream()
                        .map(listing -> listing.groupId()).collect(Collectors.toList());
            case "describe_group":
                ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                return List.of(described.state().toString(), described.members().size());
            case "committed":
                OffsetAndMetadata committed =
                        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(where);
                return committed == null ? -1L : committed.offset();
            case "delete_group":
                admin.deleteConsumerGroups(List.of(group)).all().get();
                return null;
            default:
                throw new IllegalArgumentException("unknown op " + command.get("op"));
        }
    }

    private static OffsetSpec spec(JsonNode at) {
        if (at.isNumber()) {
            return OffsetSpec.forTimestamp(at.asLong());
        }
        return at.asText().equals("earliest") ? OffsetSpec.earliest() : OffsetSpec.latest();
    }

    // ---- JSON

    private static void expire(long deadline, String message) throws Exception {
        if (System.currentTimeMillis() > deadline) {
            throw new java.util.concurrent.TimeoutException(message);
        }
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> values = new HashMap<>();
        object.fields().forEachRemaining(entry -> values.put(entry.getKey(), entry.getValue().asText()));
        return values;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static ObjectNode json(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode object = JSON.createObjectNode();
        object.put("partition", record.partition());
        object.put("offset", record.offset());
        object.put("timestamp", record.timestamp());
        object.put("key", text(record.key()));
        object.put("value", text(record.value()));
        ArrayNode headers = object.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return object;
    }
}

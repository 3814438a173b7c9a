package anabranch.tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Consumes a topic as a member of a group and writes a record for each of its records to another topic, in transactions
 * that the group's positions are part of. A step is one poll and what becomes of it; errors are part of its answer.
 */
final class Deriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Deriver> KNOWN = new HashMap<>();
    private static final int ANSWER_MS = 8_000;
    private static final long COMMIT_MS = 30_000;
    /** Of so many transactions that are committed, after one it goes on where the group is, not where it is itself. */
    private static final int LOOKS = 4;

    private final String name;
    private final String derived;
    private final Map<String, Object> common;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private KafkaProducer<byte[], byte[]> producer;
    private boolean lost;
    private long committed;
    private long written;

    private Deriver(JsonNode command, Map<String, Object> settings) {
        name = command.get("name").asText();
        derived = command.get("derived").asText();
        common = new HashMap<>(settings);
        common.put("reconnect.backoff.max.ms", 200);
        common.put("retry.backoff.max.ms", 200);
        common.put("request.timeout.ms", ANSWER_MS);
        Map<String, Object> member = new HashMap<>(common);
        member.put("group.id", command.get("group").asText());
        member.put("enable.auto.commit", false);
        member.put("auto.offset.reset", "earliest");
        member.put("isolation.level", "read_committed");
        member.put("fetch.max.wait.ms", 100);
        member.put("max.poll.records", 200);
        member.put("default.api.timeout.ms", ANSWER_MS);
        String protocol = command.get("protocol").asText();
        if (protocol.equals("classic")) {
            member.put("heartbeat.interval.ms", 300);
            member.put("session.timeout.ms", 10_000);
        } else {
            member.put("group.protocol", protocol);
        }
        consumer = new KafkaConsumer<>(member, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(command.get("topic").asText()));
    }

    /** One step of whoever has the command's name, who begins with his first. */
    static Object step(JsonNode command, Map<String, Object> settings) {
        return KNOWN.computeIfAbsent(command.get("name").asText(), name -> new Deriver(command, settings)).step();
    }

    private Object step() {
        ObjectNode told = JSON.createObjectNode();
        ConsumerRecords<byte[], byte[]> records;
        try {
            if (producer == null) {
                begin();
            }
            if (lost) {
                goBack(told.putArray("committed"));
                lost = false;
            }
            records = consumer.poll(Duration.ofMillis(200));
        } catch (KafkaException error) {
            return told.put("trouble", error.toString());
        }
        return records.isEmpty() ? told : derive(records, told);
    }

    private ObjectNode derive(ConsumerRecords<byte[], byte[]> records, ObjectNode told) {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        ArrayNode read = told.putArray("read");
        ArrayNode sent = told.putArray("sent");
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        boolean asked = false;
        try {
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                String source = new String(record.value(), StandardCharsets.UTF_8);
                read.addArray().add(record.partition()).add(record.offset()).add(source);
                String value = name + ":" + written++ + ":" + source;
                futures.add(producer.send(new ProducerRecord<>(
                        derived, record.partition(), null, value.getBytes(StandardCharsets.UTF_8))));
                sent.addArray().add(record.partition()).add(value); // the client may refuse to send it
                next.put(
                        new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            asked = true;
            commit();
            told.put("outcome", "committed");
            lost = ++committed % LOOKS == 0;
        } catch (KafkaException error) {
            told.put("trouble", error.toString());
            told.put("outcome", asked ? "unknown" : "aborted");
            lost = true;
            giveUp(asked);
        }
        ArrayNode positions = told.putArray("positions");
        next.forEach((where, at) -> positions.addArray().add(where.partition()).add(at.offset()));
        for (int number = 0; number < futures.size(); number++) {
            ((ArrayNode) sent.get(number)).add(offset(futures.get(number)));
        }
        return told;
    }

    private void begin() {
        Map<String, Object> settings = new HashMap<>(common);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", 10_000);
        settings.put("delivery.timeout.ms", 2 * ANSWER_MS);
        settings.put("max.block.ms", ANSWER_MS);
        KafkaProducer<byte[], byte[]> made =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            made.initTransactions();
        } catch (KafkaException error) {
            made.close(Duration.ZERO);
            throw error;
        }
        producer = made;
    }

    /** What was asked for stays asked for: after a timeout the same call goes on waiting. */
    private void commit() {
        long deadline = System.currentTimeMillis() + COMMIT_MS;
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                if (System.currentTimeMillis() > deadline) {
                    throw error;
                }
            }
        }
    }

    /** The next producer of this name ends what this one has left. */
    private void giveUp(boolean asked) {
        if (!asked) {
            try {
                producer.abortTransaction();
                return;
            } catch (KafkaException error) {
                // as when it was fenced, or the node is away
            }
        }
        producer.close(Duration.ZERO);
        producer = null;
    }

    /** To where the group is: what was read and not committed is read again. */
    private void goBack(ArrayNode told) {
        consumer.committed(consumer.assignment()).forEach((where, at) -> {
            told.addArray().add(where.partition()).add(at == null ? -1 : at.offset());
            consumer.seek(where, at == null ? 0 : at.offset());
        });
    }

    private static Long offset(Future<RecordMetadata> future) {
        if (!future.isDone()) {
            return null;
        }
        try {
            return future.get().offset();
        } catch (ExecutionException | InterruptedException error) {
            return null;
        }
    }
}
